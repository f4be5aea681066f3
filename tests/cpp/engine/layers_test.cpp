// Layer by layer: the halves of a layer (attention, FFN) are fed the other instruction set's recorded input and mask
// and must agree to 1e-4 of their output's maximum, for every type. Rounding to int8 amplifies from layer to layer, so
// whole quantized models cannot be compared that closely (see floor_test). A row whose inner input lies within 1e-3 of
// a step from a rounding boundary may flip it and is left out, and counted.
#include <algorithm>
#include <atomic>
#include <functional>
#include <random>

#include "engine/model_impl.h"
#include "engine/tiny_model.h"
#include "kernels/dispatch.h"
#include "ops/cpu_backend.h"
#include "powerinfer/context.h"
#include "test.h"

using namespace powerinfer;
using backend::Slot;

namespace {

constexpr int kTokens = 40;
using Rows = std::vector<std::vector<float>>;  // [kTokens][width]

class Recorder : public TapSink {
 public:
  void on_tap(const TapEvent& event) override { rows.emplace_back(event.data, event.data + event.width); }
  Rows rows;
};

/// Active where the recorded h is not zero.
class RecordedMask : public MaskSource {
 public:
  explicit RecordedMask(const Rows& h) : h_(h) {}
  bool mask(int, int, const BatchEntry& entry, std::span<std::uint8_t> active) override {
    const std::vector<float>& row = h_[static_cast<std::size_t>(entry.position)];
    std::ranges::transform(row, active.begin(), [](float value) { return value != 0.0F ? 1 : 0; });
    return true;
  }

 private:
  const Rows& h_;
};

/// Runs a plan of one layer whose "embedding" holds the given input rows; returns what the taps kResidual (the inner
/// input of the half) and kFfnOutput (its output) saw.
struct HalfResult {
  Rows inner;
  Rows output;
};
HalfResult run_half(const kernels::KernelTable& kernels, backend::ModelPlan plan, const Rows& input, MaskSource* mask) {
  std::vector<float> flat;
  for (const auto& row : input) flat.insert(flat.end(), row.begin(), row.end());
  const WeightView table{reinterpret_cast<const std::uint8_t*>(flat.data()),
                         DType::kF32,
                         Layout::kRows,
                         input.size(),
                         plan.d_model,
                         plan.d_model * sizeof(float)};
  plan.prologue.ops = {backend::EmbedOp{table, {}, 0}, backend::CopyOp{Slot::kResidual, Slot::kNormed}};
  plan.epilogue.ops.clear();
  std::vector<backend::Row> rows;
  const std::int32_t block = 0;
  for (int i = 0; i < kTokens; ++i) rows.push_back({{i, i, 0, false}, &block});
  const std::size_t head_bytes = backend::kKvBlock * plan.attention.head_dim * sizeof(float);
  std::vector<float> cache(2 * plan.attention.kv_width() * backend::kKvBlock);
  const std::size_t cache_bytes = cache.size() * sizeof(float);
  const backend::KvView kv{reinterpret_cast<std::uint8_t*>(cache.data()), DType::kF32, 1, cache_bytes, head_bytes,
                           plan.attention.head_dim * sizeof(float)};
  const std::vector<backend::LayerMode> modes{{Sparsity::kExact, 0.0F}};
  const std::atomic<bool> cancelled{false};
  Recorder inner;
  Recorder output;
  std::array<TapSink*, kTapPoints> taps{};
  taps[static_cast<std::size_t>(TapPoint::kResidual)] = &inner;
  taps[static_cast<std::size_t>(TapPoint::kFfnOutput)] = &output;
  const auto backend = ops::make_cpu_backend(kernels);
  const auto executor = backend->prepare(plan, backend::all_layers(plan), {kTokens, 2});
  executor->submit({rows, {}, nullptr, kv, modes, 2, &cancelled, taps.data(), mask, false});
  CHECK(executor->wait() == backend::PassResult::kDone);
  return {inner.rows, output.rows};
}

/// Whether some value's rounding to int8 hangs on 1e-3 of a step.
bool near_a_boundary(const std::vector<float>& row) {
  for (std::size_t begin = 0; begin < row.size(); begin += 32) {
    const std::size_t end = std::min(begin + 32, row.size());
    double max = 0;
    for (std::size_t i = begin; i < end; ++i) max = std::max(max, std::abs(static_cast<double>(row[i])));
    for (std::size_t i = begin; i < end && max > 0; ++i) {
      const double step = row[i] / max * 127.0;
      if (std::abs(step - std::floor(step) - 0.5) < 1e-3) return true;
    }
  }
  return false;
}

struct Agreement {
  double worst = 0;  // difference over the row's largest output
  int n_compared = 0;
};

/// Compares the rows that do not hang on a rounding boundary.
Agreement compare(const HalfResult& a, const HalfResult& b, bool inner_is_rounded) {
  Agreement result;
  CHECK(a.output.size() == kTokens && b.output.size() == kTokens);
  for (std::size_t row = 0; row < a.output.size(); ++row) {
    if (inner_is_rounded && near_a_boundary(a.inner[row])) continue;
    double max = 0;
    double difference = 0;
    for (std::size_t i = 0; i < a.output[row].size(); ++i) {
      max = std::max(max, std::abs(static_cast<double>(a.output[row][i])));
      difference = std::max(difference, std::abs(static_cast<double>(a.output[row][i]) - b.output[row][i]));
    }
    result.worst = std::max(result.worst, max == 0 ? difference : difference / max);
    ++result.n_compared;
  }
  return result;
}

/// What the reference instruction set saw in every layer.
struct Recording {
  std::vector<Rows> layer_input;
  std::vector<Rows> ffn_input;
  std::vector<Rows> h;
};

Recording record(const std::shared_ptr<const Model>& model) {
  Context context(model, {.kv_type = KvType::kF32, .sparsity = Sparsity::kExact, .n_threads = 1});
  class LayerRecorder : public TapSink {
   public:
    void on_tap(const TapEvent& event) override {
      layers.resize(std::max(layers.size(), static_cast<std::size_t>(event.layer) + 1));
      layers[static_cast<std::size_t>(event.layer)].emplace_back(event.data, event.data + event.width);
    }
    std::vector<Rows> layers;
  } inputs, ffn_inputs, hs;
  context.set_tap(TapPoint::kLayerInput, &inputs);
  context.set_tap(TapPoint::kFfnInput, &ffn_inputs);
  context.set_tap(TapPoint::kH, &hs);
  std::mt19937 random(4);
  std::vector<Token> tokens(kTokens);
  for (Token& token : tokens) token = static_cast<Token>(random() % 256);
  context.eval(tokens);
  return {inputs.layers, ffn_inputs.layers, hs.layers};
}

/// The plan of one half: the operations of the layer between its input being in kNormed and its output in kProjected.
backend::ModelPlan half_plan(const backend::ModelPlan& plan, std::size_t layer, bool attention) {
  backend::ModelPlan half = plan;
  half.layers.resize(1);
  std::vector<backend::Op>& ops = half.layers[0].ops;
  ops.clear();
  for (const backend::Op& op : plan.layers[layer].ops) {
    const bool is_linear = std::holds_alternative<backend::LinearOp>(op);
    const bool of_attention =
        is_linear || std::holds_alternative<backend::RopeOp>(op) || std::holds_alternative<backend::AttentionOp>(op);
    if (attention == of_attention && (attention || std::holds_alternative<backend::FfnOp>(op))) ops.push_back(op);
    if (std::holds_alternative<backend::AttentionOp>(op) && attention) {
      ops.emplace_back(backend::TapOp{TapPoint::kResidual, Slot::kAttention});
    }
  }
  ops.emplace_back(backend::TapOp{TapPoint::kFfnOutput, Slot::kProjected});
  return half;
}

void check_type(DType type, bool transposed) {
  const kernels::KernelTable& scalar = kernels::kernels_by_name("scalar");
  const kernels::KernelTable& best = kernels::select_kernels();
  const tiny::ModelFile file({.type = type, .transposed_down = transposed, .predictors = transposed, .n_layers = 3});
  const auto model = Model::load(file.path());
  const backend::ModelPlan& plan = model->impl().loaded.plan;
  const Recording seen = record(model);
  const bool rounds = quant::traits(type).int8_input;
  double worst = 0;
  int n_compared = 0;
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
    // Any input will do as long as both sides get the same: the layer input stands for its norm.
    const backend::ModelPlan attention = half_plan(plan, layer, true);
    const Agreement a = compare(run_half(scalar, attention, seen.layer_input[layer], nullptr),
                                run_half(best, attention, seen.layer_input[layer], nullptr), rounds);
    const backend::ModelPlan ffn = half_plan(plan, layer, false);
    RecordedMask mask(seen.h[layer]);
    HalfResult f = run_half(scalar, ffn, seen.ffn_input[layer], &mask);
    f.inner = seen.h[layer];  // a plain down projection rounds h
    const Agreement b = compare(f, run_half(best, ffn, seen.ffn_input[layer], &mask), rounds && !transposed);
    worst = std::max({worst, a.worst, b.worst});
    n_compared += a.n_compared + b.n_compared;
  }
  std::printf("layers %-5s %-10s scalar/%s: worst %.1e of the output's maximum, %d of %d rows compared\n",
              dtype_name(type), transposed ? "transposed" : "plain", best.name, worst, n_compared,
              2 * kTokens * static_cast<int>(plan.layers.size()));
  CHECK(worst < 1e-4);
  CHECK(n_compared > kTokens);
}

}  // namespace

TEST(halves_of_layers_agree_between_instruction_sets) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                           DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    check_type(type, true);
    check_type(type, false);
  }
}

TEST_MAIN()
