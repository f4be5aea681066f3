// The seams that devices plug into: a model cut into ranges of layers, and an FFN shared by two executors.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "engine/model_impl.h"
#include "engine/tiny_model.h"
#include "kernels/dispatch.h"
#include "ops/cpu_backend.h"
#include "powerinfer/context.h"
#include "test.h"

using namespace powerinfer;

namespace {

constexpr int kTokens = 5;

/// A pass over kTokens tokens of one sequence with its own small cache.
class PassData {
 public:
  explicit PassData(const backend::ModelPlan& plan) : modes_(plan.layers.size()), logits_(plan.n_vocab) {
    for (int i = 0; i < kTokens; ++i) rows_.push_back({{i * 31 % 256, i, 0, i + 1 == kTokens}, &block_});
    const std::size_t row_bytes = plan.attention.head_dim * sizeof(float);
    const std::size_t block_bytes = 2 * plan.attention.kv_width() * backend::kKvBlock * sizeof(float);
    cache_.resize(plan.layers.size() * block_bytes / sizeof(float));
    kv_ = {reinterpret_cast<std::uint8_t*>(cache_.data()),
           DType::kF32,
           1,
           block_bytes,
           backend::kKvBlock * row_bytes,
           row_bytes};
    for (backend::LayerMode& mode : modes_) mode.mode = Sparsity::kExact;
  }
  backend::Pass pass() {
    return {rows_, outputs_, logits_.data(), kv_, modes_, 2, &cancelled_, taps_.data(), nullptr, false};
  }
  const std::vector<float>& logits() const { return logits_; }
  void set_tap(TapPoint point, TapSink* sink) { taps_[static_cast<std::size_t>(point)] = sink; }

 private:
  std::int32_t block_ = 0;
  std::vector<backend::Row> rows_;
  std::vector<std::uint32_t> outputs_{kTokens - 1};
  std::vector<float> cache_;
  backend::KvView kv_;
  std::vector<backend::LayerMode> modes_;
  std::vector<float> logits_;
  std::array<TapSink*, kTapPoints> taps_{};
  std::atomic<bool> cancelled_{false};
};

class Recorder : public TapSink {
 public:
  void on_tap(const TapEvent& event) override {
    if (event.layer == 0) values.insert(values.end(), event.data, event.data + event.width);
  }
  std::vector<float> values;
};

}  // namespace

TEST(ranges_of_layers_chained_equal_the_whole) {
  for (const char* architecture : {"llama", "falcon"}) {
    const tiny::ModelFile file({.architecture = architecture, .type = DType::kQ8_0, .n_layers = 4});
    const auto model = Model::load(file.path());
    const backend::ModelPlan& plan = model->impl().loaded.plan;
    backend::Backend& backend = *model->impl().backend;
    PassData whole(plan);
    const auto one = backend.prepare(plan, backend::all_layers(plan), {kTokens, 2});
    one->submit(whole.pass());
    CHECK(one->wait() == backend::PassResult::kDone);

    PassData parts(plan);
    const auto first = backend.prepare(plan, {0, 1}, {kTokens, 2});
    const auto rest = backend.prepare(plan, {1, 4}, {kTokens, 2});
    first->submit(parts.pass());
    CHECK(first->wait() == backend::PassResult::kDone);
    CHECK(parts.logits() != whole.logits());
    for (std::size_t row = 0; row < kTokens; ++row)
      std::ranges::copy(first->residual(row), rest->residual(row).begin());
    rest->submit(parts.pass());
    CHECK(rest->wait() == backend::PassResult::kDone);
    CHECK(parts.logits() == whole.logits());
  }
}

TEST(two_parts_of_an_ffn_add_up) {
  for (const bool transposed : {true, false}) {
    for (const char* architecture : {"llama", "opt"}) {
      const tiny::ModelFile file({.architecture = architecture, .type = DType::kF16, .transposed_down = transposed});
      const auto model = Model::load(file.path());
      const backend::ModelPlan& plan = model->impl().loaded.plan;
      backend::Backend& backend = *model->impl().backend;
      Recorder input;
      Recorder output;
      PassData data(plan);
      data.set_tap(TapPoint::kFfnInput, &input);
      data.set_tap(TapPoint::kFfnOutput, &output);
      const auto whole = backend.prepare(plan, backend::all_layers(plan), {kTokens, 2});
      whole->submit(data.pass());
      CHECK(whole->wait() == backend::PassResult::kDone);

      // One part has every third neuron, the other the rest; the bias belongs to neither.
      const std::size_t d_ff = plan.d_ff_max;
      std::vector<std::uint8_t> some(kTokens * d_ff);
      std::vector<std::uint8_t> others(kTokens * d_ff);
      for (std::size_t i = 0; i < some.size(); ++i) (i % 3 == 0 ? some : others)[i] = 1;
      std::vector<float> y(kTokens * plan.d_model);
      const float* bias = model->impl().ffn(0).unit.down_bias;
      for (std::size_t i = 0; i < y.size() && bias != nullptr; ++i) y[i] = bias[i % plan.d_model];
      const auto helper = backend.prepare(plan, {0, 1}, {kTokens, 2});
      whole->submit_ffn({0, kTokens, input.values.data(), some.data(), y.data(), 2});
      helper->submit_ffn({0, kTokens, input.values.data(), others.data(), y.data(), 2});
      CHECK_EQ(output.values.size(), y.size());
      float max = 0;
      float difference = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        max = std::max(max, std::abs(output.values[i]));
        difference = std::max(difference, std::abs(output.values[i] - y[i]));
      }
      CHECK(max > 0.01F && difference < 1e-5F * max);

      const std::uint64_t n_nonzero = whole->counters()[0].n_nonzero;
      whole->submit(data.pass());
      CHECK(whole->wait() == backend::PassResult::kDone);
      CHECK_EQ(whole->counters()[0].n_nonzero, 2 * n_nonzero);  // the parts are not counted
    }
  }
}

TEST_MAIN()
