// Bits: exact = dense, any thread count, any batch of up to 32 rows, any neighbour; and what must not allocate.
#include "test.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "engine/context_access.h"
#include "engine/tiny_model.h"
#include "ops/cpu_backend.h"
#include "parallel/thread_pool.h"
#include "powerinfer/context.h"
#include "powerinfer/error.h"

using namespace powerinfer;

namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                            DType::kQ4_1, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
constexpr const char* kArchitectures[] = {"llama", "bamboo", "falcon", "opt"};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Logits = std::vector<std::vector<float>>;  // [n_tokens][n_vocab]

std::vector<Token> random_tokens(std::size_t n, std::uint32_t seed, int n_vocab = 256) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(n);
  for (Token& token : tokens) token = static_cast<Token>(random() % static_cast<std::uint32_t>(n_vocab));
  return tokens;
}

/// Evaluates in pieces of the given sizes (repeating the last) and returns the logits of every token.
Logits evaluate(Context& context, std::span<const Token> tokens, const std::vector<std::size_t>& pieces) {
  Logits all;
  const auto n_vocab = static_cast<std::size_t>(context.model()->n_vocab());
  for (std::size_t begin = 0, piece = 0; begin < tokens.size(); ++piece) {
    const std::size_t n = std::min(pieces[std::min(piece, pieces.size() - 1)], tokens.size() - begin);
    const std::span<const float> logits = context.eval(tokens.subspan(begin, n), true);
    for (std::size_t i = 0; i < n; ++i) {
      all.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(i * n_vocab),
                       logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * n_vocab));
    }
    begin += n;
  }
  return all;
}

bool same_bits(const Logits& a, const Logits& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

bool all_finite(const Logits& logits) {
  return std::ranges::all_of(
      logits, [](const auto& row) { return std::ranges::all_of(row, [](float x) { return std::isfinite(x); }); });
}

ContextOptions with_mode(Sparsity mode, std::vector<float> threshold = {}) {
  ContextOptions options;
  options.sparsity = mode;
  options.threshold = std::move(threshold);
  options.n_threads = 2;
  return options;
}

void check_modes(const tiny::Options& options) {
  const std::string what =
      options.architecture + " " + dtype_name(options.type) + (options.transposed_down ? " transposed" : " plain");
  const tiny::ModelFile file(options);
  const auto model = Model::load(file.path());
  const std::vector<Token> tokens = random_tokens(70, 3);
  const std::vector<std::size_t> pieces = {1, 1, 2, 7, 32, 3};
  Context dense(model, with_mode(Sparsity::kDense));
  Context exact(model, with_mode(Sparsity::kExact));
  Context all_active(model, with_mode(Sparsity::kPredictor, {-kInfinity}));
  Context none_active(model, with_mode(Sparsity::kPredictor, {kInfinity}));
  const Logits expected = evaluate(dense, tokens, pieces);
  const bool finite = all_finite(expected);
  if (!finite) pi_test::fail(__FILE__, __LINE__, what + ": logits are not finite");
  if (!same_bits(expected, evaluate(exact, tokens, pieces)))
    pi_test::fail(__FILE__, __LINE__, what + ": exact differs from dense");
  if (!same_bits(expected, evaluate(all_active, tokens, pieces))) {
    pi_test::fail(__FILE__, __LINE__, what + ": threshold -inf differs from dense");
  }
  if (same_bits(expected, evaluate(none_active, tokens, pieces))) {
    pi_test::fail(__FILE__, __LINE__, what + ": threshold +inf changes nothing");
  }
  const double density = exact.stats().density[0];
  CHECK(density > 0.02 && density < 0.9);
  CHECK_EQ(exact.stats().density[1], dense.stats().density[1]);
  // Half of an ungated model's neurons fire here: no block of a plain down projection is without one.
  const bool skips = options.transposed_down || options.architecture == "llama" || options.architecture == "bamboo";
  CHECK(exact.stats().weight_bytes_per_token <= dense.stats().weight_bytes_per_token - (skips ? 1 : 0));
}

}  // namespace

TEST(exact_equals_dense_for_every_type_and_layout) {
  for (const DType type : kTypes) {
    for (const bool transposed : {true, false}) check_modes({.type = type, .transposed_down = transposed});
  }
}

TEST(exact_equals_dense_for_every_architecture) {
  for (const char* architecture : kArchitectures) {
    for (const bool transposed : {true, false}) {
      check_modes({.architecture = architecture, .type = DType::kQ8_0, .transposed_down = transposed});
      check_modes({.architecture = architecture,
                   .type = DType::kF32,
                   .transposed_down = transposed,
                   .activation = architecture == std::string("bamboo") ? "drelu" : "fatrelu"});
    }
  }
}

namespace {

/// Records what the FFN adds.
class OutputSink : public TapSink {
 public:
  void on_tap(const TapEvent& event) override { rows.emplace_back(event.data, event.data + event.width); }
  Logits rows;
};

}  // namespace

TEST(threshold_plus_infinity_leaves_only_the_down_bias) {
  for (const char* architecture : {"llama", "opt"}) {
    const tiny::ModelFile file({.architecture = architecture, .type = DType::kF16});
    const auto model = Model::load(file.path());
    Context context(model, with_mode(Sparsity::kPredictor, {kInfinity}));
    OutputSink sink;
    context.set_tap(TapPoint::kFfnOutput, &sink);
    context.eval(random_tokens(3, 1));
    CHECK_EQ(sink.rows.size(), 6U);  // 3 tokens, 2 layers
    const TensorInfo* bias = model->file().find_tensor("blk.0.ffn_down_t.bias");
    CHECK_EQ(bias != nullptr, architecture == std::string("opt"));
    for (std::size_t i = 0; i < sink.rows[0].size(); ++i) {
      const float expected = bias == nullptr ? 0.0F : reinterpret_cast<const float*>(model->file().data(*bias))[i];
      CHECK(sink.rows[0][i] == expected);
    }
  }
}

TEST(bits_do_not_depend_on_threads) {
  for (const bool transposed : {true, false}) {
    for (const DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_1}) {
      const tiny::ModelFile file({.type = type, .transposed_down = transposed, .d_ff = 1280});
      const auto model = Model::load(file.path());
      const std::vector<Token> tokens = random_tokens(48, 5);
      for (const Sparsity mode : {Sparsity::kDense, Sparsity::kExact, Sparsity::kPredictor}) {
        std::optional<Logits> first;
        for (const int n_threads : {1, 2, 3, 8}) {
          ContextOptions options = with_mode(mode);
          options.n_threads = n_threads;
          Context context(model, options);
          auto* pool = ops::thread_pool_of(engine::ContextAccess::executor(context));
          pool->set_claiming(parallel::Claiming::kFair);
          const Logits logits = evaluate(context, tokens, {1, 1, 1, 1, 12, 32});
          CHECK_EQ(context.stats().workers_seen, (std::uint64_t{1} << n_threads) - 1);
          if (!first) first = logits;
          CHECK(same_bits(*first, logits));
        }
      }
    }
  }
}

TEST(dynamic_claiming_gives_the_same_bits) {
  const tiny::ModelFile file({.type = DType::kQ4_0});
  const auto model = Model::load(file.path());
  const std::vector<Token> tokens = random_tokens(64, 6);
  ContextOptions options = with_mode(Sparsity::kPredictor);
  options.n_threads = 1;
  Context single(model, options);
  options.n_threads = 8;
  Context many(model, options);
  CHECK(same_bits(evaluate(single, tokens, {1}), evaluate(many, tokens, {1})));
}

TEST(bits_do_not_depend_on_the_batch) {
  for (const DType type : kTypes) {
    for (const char* architecture : kArchitectures) {
      if (architecture != std::string("llama") && type != DType::kQ8_0) continue;
      const tiny::ModelFile file({.architecture = architecture, .type = type});
      const auto model = Model::load(file.path());
      const std::vector<Token> tokens = random_tokens(64, 7);
      for (const Sparsity mode : {Sparsity::kExact, Sparsity::kPredictor}) {
        Context alone(model, with_mode(mode));
        const Logits expected = evaluate(alone, tokens, {1});
        for (const std::size_t n : {2, 7, 32}) {
          Context context(model, with_mode(mode));
          CHECK(same_bits(expected, evaluate(context, tokens, {n})));
        }
      }
    }
  }
}

TEST(interleaved_sequences_give_the_bits_of_each_alone) {
  const tiny::ModelFile file({.type = DType::kQ8_0});
  const auto model = Model::load(file.path());
  const std::vector<Token> a = random_tokens(20, 8);
  const std::vector<Token> b = random_tokens(20, 9);
  Context alone(model, with_mode(Sparsity::kPredictor));
  const Logits expected_a = evaluate(alone, a, {1});
  alone.reset();
  const Logits expected_b = evaluate(alone, b, {1});
  ContextOptions options = with_mode(Sparsity::kPredictor);
  options.n_seqs = 2;
  Context both(model, options);
  for (int i = 0; i < 20; i += 2) {
    const auto at = static_cast<std::size_t>(i);
    const std::span<const float> logits = both.forward(
        {{a[at], i, 0, true}, {b[at], i, 1, true}, {b[at + 1], i + 1, 1, true}, {a[at + 1], i + 1, 0, true}});
    const auto row = [&](std::size_t index) {
      return std::vector<float>(logits.begin() + static_cast<std::ptrdiff_t>(index * 256),
                                logits.begin() + static_cast<std::ptrdiff_t>((index + 1) * 256));
    };
    CHECK(same_bits({row(0), row(3), row(1), row(2)},
                    {expected_a[at], expected_a[at + 1], expected_b[at], expected_b[at + 1]}));
  }
}

TEST(copied_sequences_share_and_then_part) {
  const tiny::ModelFile file({.type = DType::kF16, .n_ctx = 1024});
  const auto model = Model::load(file.path());
  const std::vector<Token> prefix = random_tokens(300, 10);
  const std::vector<Token> tail = random_tokens(10, 11);
  ContextOptions options = with_mode(Sparsity::kExact);
  options.n_seqs = 2;
  Context context(model, options);
  context.eval(prefix);
  context.copy_sequence(0, 1);
  CHECK_EQ(context.n_past(1), 300);
  context.truncate(200, 0);  // writes into what was a shared block
  context.eval(tail);
  Batch batch;
  for (std::size_t i = 0; i < tail.size(); ++i)
    batch.push_back({tail[i], 300 + static_cast<int>(i), 1, i + 1 == tail.size()});
  const std::span<const float> logits = context.forward(batch);
  Context reference(model, with_mode(Sparsity::kExact));
  reference.eval(prefix);
  const std::span<const float> expected = reference.eval(tail);
  CHECK(std::equal(logits.begin(), logits.end(), expected.begin(), expected.end()));
  reference.reset();
  reference.eval({prefix.data(), 200});
  const std::vector<float> after_tail = [&] {
    const auto got = reference.eval(tail);
    return std::vector<float>(got.begin(), got.end());
  }();
  context.truncate(200, 0);
  const std::span<const float> again = context.eval(tail);
  CHECK(std::equal(again.begin(), again.end(), after_tail.begin(), after_tail.end()));
}

TEST(two_models_at_once_from_two_threads) {
  const tiny::ModelFile file_a({.type = DType::kQ8_0});
  const tiny::ModelFile file_b({.architecture = "falcon", .type = DType::kF16, .seed = 2});
  const std::vector<Token> tokens = random_tokens(40, 12);
  const auto run = [&](const tiny::ModelFile& file) {
    Context context(Model::load(file.path()), with_mode(Sparsity::kExact));
    return evaluate(context, tokens, {8, 1});
  };
  const Logits expected_a = run(file_a);
  const Logits expected_b = run(file_b);
  Logits got_a;
  Logits got_b;
  std::thread other([&] { got_b = run(file_b); });
  got_a = run(file_a);
  other.join();
  CHECK(same_bits(expected_a, got_a));
  CHECK(same_bits(expected_b, got_b));
}

TEST(truncate_and_evaluate_again_gives_the_same_bits) {
  const tiny::ModelFile file({.type = DType::kQ4_K});
  const auto model = Model::load(file.path());
  const std::vector<Token> tokens = random_tokens(300, 13);
  Context context(model, with_mode(Sparsity::kPredictor));
  const Logits first = evaluate(context, tokens, {100, 1, 30});
  context.truncate(101);
  CHECK_EQ(context.n_past(), 101);
  const Logits second = evaluate(context, std::span(tokens).subspan(101), {30});
  CHECK(same_bits({first.begin() + 101, first.end()}, second));
}

TEST(a_mask_source_decides_in_the_predictors_place) {
  class EvenNeurons : public MaskSource {
   public:
    bool mask(int, int, const BatchEntry&, std::span<std::uint8_t> active) override {
      for (std::size_t i = 0; i < active.size(); ++i) active[i] = i % 2 == 0 ? 1 : 0;
      return true;
    }
  };
  class HSink : public TapSink {
   public:
    void on_tap(const TapEvent& event) override {
      for (std::size_t i = 1; i < event.width; i += 2) odd += event.data[i] != 0.0F ? 1 : 0;
      for (std::size_t i = 0; i < event.width; i += 2) even += event.data[i] != 0.0F ? 1 : 0;
    }
    int odd = 0;
    int even = 0;
  };
  const tiny::ModelFile file({.type = DType::kQ8_0});
  Context context(Model::load(file.path()), with_mode(Sparsity::kExact));
  EvenNeurons masks;
  HSink sink;
  context.set_mask_source(&masks);
  context.set_tap(TapPoint::kH, &sink);
  context.eval(random_tokens(5, 14));
  CHECK_EQ(sink.odd, 0);
  CHECK(sink.even > 0);
}

TEST(larger_prompts_agree_with_single_tokens) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    const tiny::ModelFile file({.type = type});
    const auto model = Model::load(file.path());
    const std::vector<Token> tokens = random_tokens(400, 15);
    Context single(model, with_mode(Sparsity::kExact));
    Context prompt(model, with_mode(Sparsity::kExact));
    // Every tile keeps the single-token rule here, so the bits agree and not only the tolerance.
    CHECK(same_bits(evaluate(single, tokens, {1}), evaluate(prompt, tokens, {400})));
  }
}

TEST_MAIN()
