// The floor: how far two correct instruction sets lie apart on the same file, because they sum in another order.
// Printed per type; float types must agree to 1e-4 of the spread, and rounding to int8 must not amplify beyond reason.
#include "test.h"

#include <algorithm>
#include <random>

#include "engine/tiny_model.h"
#include "kernels/dispatch.h"
#include "kernels/force_isa.h"
#include "powerinfer/context.h"
#include "powerinfer/error.h"

using namespace powerinfer;
using pi_test::force_isa;

namespace {

constexpr int kTokens = 48;

std::vector<float> logits_on(const char* isa, const tiny::ModelFile& file, Sparsity mode) {
  force_isa(isa);
  const auto model = Model::load(file.path());
  force_isa("");
  Context context(model, {.kv_type = KvType::kF32, .sparsity = mode, .n_threads = 2});
  CHECK_EQ(context.stats().isa, std::string(isa));
  std::mt19937 random(4);
  std::vector<Token> tokens(kTokens);
  for (Token& token : tokens) token = static_cast<Token>(random() % 256);
  const std::span<const float> logits = context.eval(tokens, true);
  return {logits.begin(), logits.end()};
}

struct Distance {
  double spread_share = 0;  // largest difference over the spread of its position
  double kl = 0;            // mean KL in nats
};

Distance distance(const std::vector<float>& a, const std::vector<float>& b, std::size_t n_vocab) {
  Distance result;
  for (std::size_t row = 0; row < a.size(); row += n_vocab) {
    const auto begin = a.begin() + static_cast<std::ptrdiff_t>(row);
    const auto [low, high] = std::minmax_element(begin, begin + static_cast<std::ptrdiff_t>(n_vocab));
    double sum_a = 0;
    double sum_b = 0;
    for (std::size_t i = row; i < row + n_vocab; ++i) {
      result.spread_share = std::max(result.spread_share, std::abs(a[i] - b[i]) / static_cast<double>(*high - *low));
      sum_a += std::exp(static_cast<double>(a[i]));
      sum_b += std::exp(static_cast<double>(b[i]));
    }
    for (std::size_t i = row; i < row + n_vocab; ++i) {
      const double log_a = a[i] - std::log(sum_a);
      result.kl += std::exp(log_a) * (log_a - (b[i] - std::log(sum_b))) / kTokens;
    }
  }
  return result;
}

}  // namespace

TEST(scalar_against_the_best_isa) {
  const char* best = kernels::select_kernels().name;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                           DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const tiny::ModelFile file({.type = type, .n_layers = 6});
    const auto scalar = logits_on("scalar", file, Sparsity::kExact);
    const Distance floor = distance(scalar, logits_on(best, file, Sparsity::kExact), 256);
    std::printf("floor %-5s scalar/%s: %.2e of the spread, KL %.2e\n", dtype_name(type), best, floor.spread_share,
                floor.kl);
    const bool is_float = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
    CHECK(floor.spread_share < (is_float ? 1e-4 : 5e-2));
    // Another mode of the same file is no rounding noise: the measure tells them apart.
    const Distance other = distance(scalar, logits_on(best, file, Sparsity::kPredictor), 256);
    CHECK(other.spread_share > 2 * floor.spread_share);
  }
}

TEST(a_forced_isa_must_exist) {
  const tiny::ModelFile file({});
  force_isa("avx9");
  CHECK_THROWS(Model::load(file.path()), InvalidArgument, "avx9");
  force_isa("");
}

TEST_MAIN()
