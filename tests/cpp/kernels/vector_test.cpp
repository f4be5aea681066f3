// Vector kernels on every instruction set against double-precision twins.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "base/half.h"
#include "base/text.h"
#include "kernels/random_rows.h"
#include "test.h"

using namespace powerinfer;
using namespace powerinfer::kernels;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<std::size_t> kSizes = {1, 2, 7, 8, 9, 15, 16, 31, 33, 100, 576, 1023};

template <class F>
void for_all(F body) {
  std::mt19937 random(21);
  for (const auto* table : pi_test::usable_tables()) {
    for (const std::size_t n : kSizes) body(*table, n, random);
  }
}

/// |got - want| in units of the last place of `want` as a float (of the smallest subnormal at least).
double ulps(float got, double want) {
  const auto nearest = static_cast<float>(want);
  if (std::isinf(nearest) || std::isinf(got)) return nearest == got ? 0 : kInf;
  int exponent = 0;
  std::frexp(nearest, &exponent);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

TEST(add_mul_scale_max) {
  for_all([](const KernelTable& table, std::size_t n, auto& random) {
    const auto x = pi_test::random_floats(n, random);
    const auto y = pi_test::random_floats(n, random);
    auto sum = y;
    table.add(x.data(), n, sum.data());
    auto product = y;
    table.mul(x.data(), n, product.data());
    auto scaled = y;
    table.scale(0.37F, n, scaled.data());
    float largest = -kInf;
    for (std::size_t i = 0; i < n; ++i) {
      CHECK_EQ(sum[i], y[i] + x[i]);
      CHECK_EQ(product[i], y[i] * x[i]);
      CHECK_EQ(scaled[i], y[i] * 0.37F);
      largest = std::max(largest, x[i]);
    }
    CHECK_EQ(table.max(x.data(), n), largest);
  });
}

TEST(max_finds_any_place_and_minus_infinity) {
  for_all([](const KernelTable& table, std::size_t n, auto&) {
    std::vector<float> x(n, -kInf);
    CHECK_EQ(table.max(x.data(), n), -kInf);
    for (std::size_t i = 0; i < n; ++i) {
      x.assign(n, -5.0F);
      x[i] = -4.0F;
      CHECK_EQ(table.max(x.data(), n), -4.0F);
    }
  });
}

TEST(exp_is_within_two_ulps) {
  for (const auto* table : pi_test::usable_tables()) {
    double worst = 0;
    std::vector<float> x;
    for (float value = -104.5F; value < 89.0F; value += 0.00137F) x.push_back(value);
    for (int i = -200; i <= 200; ++i) x.push_back(static_cast<float>(i) * 0.34657359F);  // where n changes
    auto y = x;
    table->exp_sum(0.0F, y.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
    std::cout << "  " << table->name << ": worst exp error " << worst << " ulp\n";
    CHECK(worst <= 2.0);
  }
}

TEST(exp_of_special_values) {
  for (const auto* table : pi_test::usable_tables()) {
    std::vector<float> x = {-kInf, -1e30F, -200.0F, -104.0F, 0.0F, -0.0F, 89.0F, 1e30F, kInf, kNan};
    table->exp_sum(0.0F, x.size(), x.data());
    for (std::size_t i = 0; i < 4; ++i) CHECK(same_bits(x[i], 0.0F));
    CHECK_EQ(x[4], 1.0F);
    CHECK_EQ(x[5], 1.0F);
    for (std::size_t i = 6; i < 9; ++i) CHECK_EQ(x[i], kInf);
    CHECK(std::isnan(x[9]));
  }
}

TEST(exp_sum_subtracts_the_maximum_and_sums) {
  for_all([](const KernelTable& table, std::size_t n, auto& random) {
    const auto x = pi_test::random_floats(n, random, 5.0F);
    auto y = x;
    const float sum = table.exp_sum(3.5F, n, y.data());
    double expected = 0;
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(ulps(y[i], std::exp(static_cast<double>(x[i] - 3.5F))) <= 2.0);
      expected += std::exp(static_cast<double>(x[i] - 3.5F));
    }
    CHECK(std::fabs(static_cast<double>(sum) - expected) <= 3e-6 * expected);
  });
}

TEST(silu_and_gelu) {
  struct Function {
    void (*KernelTable::*kernel)(std::size_t, float*) noexcept;
    double (*twin)(double);
  };
  const Function functions[] = {
      {&KernelTable::silu, [](double x) { return x / (1 + std::exp(-x)); }},
      {&KernelTable::gelu_tanh,
       [](double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x))); }},
  };
  for (const auto& function : functions) {
    for (const auto* table : pi_test::usable_tables()) {
      std::vector<float> x = {0.0F, -0.0F, 1e-30F, 60.0F, -60.0F, 3e38F};
      for (float value = -12.0F; value < 12.0F; value += 0.0113F) x.push_back(value);
      auto y = x;
      (table->*function.kernel)(y.size(), y.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double want = function.twin(static_cast<double>(x[i]));
        // An argument's rounding error is multiplied by its size in the exponential, which overflows near 89.
        const double relative = 4e-7 * (2 + std::fabs(static_cast<double>(std::min(std::fabs(x[i]), 60.0F))) * 4);
        CHECK(std::fabs(static_cast<double>(y[i]) - want) <= relative * std::fabs(want) + 1e-37);
      }
      float odd[] = {kNan, kInf, -kInf};
      (table->*function.kernel)(3, odd);
      CHECK(std::isnan(odd[0]));
      CHECK_EQ(odd[1], kInf);
    }
  }
}

TEST(elementwise_bits_do_not_depend_on_the_place) {
  // A value alone, in a tail or in a full vector: work may be cut anywhere.
  std::mt19937 random(22);
  const auto x = pi_test::random_floats(64, random, 4.0F);
  using Kernel = std::function<void(const KernelTable&, std::size_t, float*)>;
  const Kernel kernels[] = {
      [](const KernelTable& table, std::size_t n, float* y) { table.silu(n, y); },
      [](const KernelTable& table, std::size_t n, float* y) { table.gelu_tanh(n, y); },
      [](const KernelTable& table, std::size_t n, float* y) { table.exp_sum(1.0F, n, y); },
  };
  for (const auto* table : pi_test::usable_tables()) {
    for (const Kernel& kernel : kernels) {
      auto whole = x;
      kernel(*table, whole.size(), whole.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        float alone = x[i];
        kernel(*table, 1, &alone);
        CHECK(same_bits(alone, whole[i]));
      }
    }
  }
}

TEST(norms) {
  for_all([](const KernelTable& table, std::size_t n, auto& random) {
    for (const float shift : {0.0F, 100.0F}) {
      auto x = pi_test::random_floats(n, random);
      for (float& value : x) value += shift;
      const auto weight = pi_test::random_floats(n, random);
      const auto bias = pi_test::random_floats(n, random);
      const double eps = static_cast<double>(1e-5F);
      double squares = 0;
      double mean = 0;
      for (const float value : x) {
        squares += static_cast<double>(value) * static_cast<double>(value);
        mean += static_cast<double>(value) / static_cast<double>(n);
      }
      double variance = 0;
      for (const float value : x) variance += std::pow(static_cast<double>(value) - mean, 2) / static_cast<double>(n);

      std::vector<float> rms(n);
      std::vector<float> layer(n);
      std::vector<float> unbiased(n);
      table.rms_norm(x.data(), weight.data(), n, 1e-5F, rms.data());
      table.layer_norm(x.data(), weight.data(), bias.data(), n, 1e-5F, layer.data());
      table.layer_norm(x.data(), weight.data(), nullptr, n, 1e-5F, unbiased.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double w = static_cast<double>(weight[i]);
        const double rms_want = static_cast<double>(x[i]) / std::sqrt(squares / static_cast<double>(n) + eps) * w;
        CHECK(std::fabs(static_cast<double>(rms[i]) - rms_want) <= 5e-7 * std::fabs(rms_want));
        const double scaled = (static_cast<double>(x[i]) - mean) / std::sqrt(variance + eps) * w;
        const double want = scaled + static_cast<double>(bias[i]);
        const double tolerance = 1e-6 * (std::fabs(scaled) + std::fabs(w) + std::fabs(static_cast<double>(bias[i])));
        CHECK(std::fabs(static_cast<double>(layer[i]) - want) <= tolerance);
        CHECK(std::fabs(static_cast<double>(unbiased[i]) - scaled) <= tolerance);
      }
    }
  });
}

TEST(norms_work_in_place) {
  std::mt19937 random(24);
  const auto x = pi_test::random_floats(77, random);
  const auto weight = pi_test::random_floats(77, random);
  for (const auto* table : pi_test::usable_tables()) {
    std::vector<float> apart(77);
    auto same = x;
    table->rms_norm(x.data(), weight.data(), 77, 1e-6F, apart.data());
    table->rms_norm(same.data(), weight.data(), 77, 1e-6F, same.data());
    CHECK(same == apart);
    same = x;
    table->layer_norm(x.data(), weight.data(), weight.data(), 77, 1e-6F, apart.data());
    table->layer_norm(same.data(), weight.data(), weight.data(), 77, 1e-6F, same.data());
    CHECK(same == apart);
  }
}

TEST(f32_to_f16_rounds_half_to_even) {
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = base::half_to_float(half);
    x.push_back(value);
    if (!std::isfinite(value)) continue;
    const float next = base::half_to_float(static_cast<std::uint16_t>(half + 1));
    if (std::isfinite(next))
      x.push_back(static_cast<float>((static_cast<double>(value) + static_cast<double>(next)) / 2));
    x.push_back(std::nextafter(value, kInf));
  }
  for (const float value : {65519.0F, 65520.0F, 1e10F, -65520.0F, 1e-10F, -2.9e-8F, 2.98023224e-8F}) x.push_back(value);
  for (const auto* table : pi_test::usable_tables()) {
    std::vector<std::uint16_t> y(x.size());
    table->f32_to_f16(x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        CHECK(std::isnan(base::half_to_float(y[i])));
      } else {
        CHECK_EQ(y[i], base::float_to_half(x[i]));
      }
    }
  }
  for_all([](const KernelTable& table, std::size_t n, auto& random) {
    const auto values = pi_test::random_floats(n, random);
    std::vector<std::uint16_t> y(n + 1, 7);
    table.f32_to_f16(values.data(), n, y.data());
    for (std::size_t i = 0; i < n; ++i) CHECK_EQ(y[i], base::float_to_half(values[i]));
    CHECK_EQ(y[n], 7);
  });
}

TEST(quantize_input_follows_the_rule) {
  for_all([](const KernelTable& table, std::size_t n, auto& random) {
    for (const float scale : {1.0F, 1e-20F, 1e20F}) {
      auto x = pi_test::random_floats(n, random, scale);
      const std::size_t n_blocks = (n + 31) / 32;
      std::vector<std::int8_t> q(n_blocks * 32, 99);
      std::vector<float> d(n_blocks, 99);
      std::vector<std::int32_t> sum(n_blocks, 99);
      table.quantize_input(x.data(), n, q.data(), d.data(), sum.data());
      x.resize(n_blocks * 32, 0.0F);
      for (std::size_t b = 0; b < n_blocks; ++b) {
        float largest = 0;
        for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[b * 32 + i]));
        CHECK_EQ(d[b], largest / 127.0F);
        const float id = 127.0F / largest;
        std::int32_t expected_sum = 0;
        for (std::size_t i = 0; i < 32; ++i) {
          const auto want = static_cast<int>(std::nearbyint(x[b * 32 + i] * id));
          CHECK_EQ(static_cast<int>(q[b * 32 + i]), want);
          expected_sum += want;
        }
        CHECK_EQ(sum[b], expected_sum);
      }
    }
  });
}

TEST(quantize_input_half_to_even_and_zero) {
  // Maximum 127: id is exactly 1, so x is what is rounded.
  std::vector<float> x = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 3.5F, 126.5F, -126.5F, 0.49999997F, 125.5F};
  const std::vector<int> want = {127, 0, 2, 2, 0, -2, -2, 4, 126, -126, 0, 126};
  x.resize(64, 0.0F);  // the second block is all zero
  for (const auto* table : pi_test::usable_tables()) {
    std::vector<std::int8_t> q(64, 99);
    float d[2] = {99, 99};
    std::int32_t sum[2] = {99, 99};
    table->quantize_input(x.data(), 64, q.data(), d, sum);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK_EQ(static_cast<int>(q[i]), want[i]);
    for (std::size_t i = want.size(); i < 64; ++i) CHECK_EQ(static_cast<int>(q[i]), 0);
    CHECK_EQ(d[0], 1.0F);
    CHECK_EQ(d[1], 0.0F);
    CHECK_EQ(sum[0], 127 + 0 + 2 + 2 + 0 - 2 - 2 + 4 + 126 - 126 + 0 + 126);
    CHECK_EQ(sum[1], 0);
  }
}

TEST(quantize_input_marks_what_is_no_number) {
  // The integers hold anything within -127..127, which the dots rely on.
  for (const auto* table : pi_test::usable_tables()) {
    for (const float odd : {kNan, -kNan, kInf, -kInf}) {
      for (const float others : {0.0F, -1.0F, 1e-45F, 3e38F, odd}) {
        for (std::size_t place = 0; place < 64; ++place) {
          std::vector<float> x(70, 1.0F);
          std::fill_n(x.begin() + (place < 32 ? 0 : 32), 32, others);
          x[place] = odd;
          std::vector<std::int8_t> q(96, -128);
          float d[3] = {};
          std::int32_t sum[3] = {};
          table->quantize_input(x.data(), x.size(), q.data(), d, sum);
          CHECK(std::isnan(d[place / 32]));
          CHECK(same_bits(d[1 - place / 32], 1.0F / 127.0F) && same_bits(d[2], 1.0F / 127.0F));
          for (const std::int8_t value : q) CHECK(value >= -127);
        }
        float x[7] = {1, 2, 3, 4, 5, 6, odd};  // in a tail
        std::int8_t q[32];
        float d = 0;
        std::int32_t sum = 0;
        table->quantize_input(x, 7, q, &d, &sum);
        CHECK(std::isnan(d));
      }
    }
  }
}

TEST(quantize_input_is_exact_for_every_number) {
  // Also for signed zeros and maxima so small that 127 / maximum is infinite: those blocks become zeros.
  std::mt19937 random(26);
  for (const auto* table : pi_test::usable_tables()) {
    for (const float largest :
         {0.0F, 1e-45F, 1e-40F, 1.17549435e-38F, 3e-37F, 3.8e-37F, 1e-30F, 1.0F, 3.40282347e+38F}) {
      for (const float sign : {1.0F, -1.0F}) {
        for (std::size_t place = 0; place < 32; ++place) {
          std::vector<float> x = pi_test::random_floats(32, random);
          for (float& value : x) value = std::clamp(value, -1.0F, 1.0F) * largest;
          x[place] = sign * largest;
          x[(place + 5) % 32] = -0.0F;
          std::vector<std::int8_t> q(32, 99);
          float d = 99;
          std::int32_t sum = 99;
          table->quantize_input(x.data(), 32, q.data(), &d, &sum);
          CHECK(same_bits(d, largest / 127.0F));
          const float inverse = largest == 0.0F ? 0.0F : 127.0F / largest;
          std::int32_t expected_sum = 0;
          for (std::size_t i = 0; i < 32; ++i) {
            const int want = std::isinf(inverse) ? 0 : static_cast<int>(std::nearbyint(x[i] * inverse));
            CHECK_EQ(static_cast<int>(q[i]), want);
            expected_sum += want;
          }
          CHECK_EQ(sum, expected_sum);
        }
      }
    }
  }
}

TEST(instruction_sets_round_inputs_alike) {
  std::mt19937 random(25);
  const auto x = pi_test::random_floats(32 * 200, random);
  std::vector<std::int8_t> first;
  for (const auto* table : pi_test::usable_tables()) {
    std::vector<std::int8_t> q(x.size());
    std::vector<float> d(200);
    std::vector<std::int32_t> sum(200);
    table->quantize_input(x.data(), x.size(), q.data(), d.data(), sum.data());
    if (first.empty()) first = q;
    CHECK(first == q);
  }
}

TEST_MAIN()
