// Dots of every type on every instruction set against a double-precision twin; bits do not depend on grouping.
#include <cstring>
#include <limits>

#include "base/text.h"
#include "kernels/random_rows.h"
#include "test.h"

using namespace powerinfer;
using namespace powerinfer::kernels;
using pi_test::RandomRows;

namespace {

/// Input rows, rounded here by the rule, independently of the kernels.
struct Input {
  std::size_t n_tokens;
  std::size_t stride;
  std::vector<float> f32;
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> sum;

  Input(std::size_t tokens, std::size_t n_cols, std::mt19937& random)
      : n_tokens(tokens), stride((n_cols + 31) / 32 * 32), f32(pi_test::random_floats(tokens * stride, random)) {
    // What lies beyond the last column of a ragged row is not the kernel's business.
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t c = n_cols; c < stride; ++c) f32[t * stride + c] = std::numeric_limits<float>::quiet_NaN();
    }
    round();
  }

  /// Fills q, d and sum from f32.
  void round() {
    q.assign(f32.size(), 0);
    d.assign(f32.size() / 32, 0);
    sum.assign(f32.size() / 32, 0);
    for (std::size_t b = 0; b < d.size(); ++b) {
      float largest = 0;
      for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(f32[b * 32 + i]));
      d[b] = largest / 127;
      const float id = largest == 0 ? 0 : 127 / largest;
      for (std::size_t i = 0; i < 32; ++i) {
        const float scaled = f32[b * 32 + i] * id;
        q[b * 32 + i] = std::isnan(scaled) ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(scaled));
        sum[b] += q[b * 32 + i];
      }
    }
  }

  DotInput view() const { return {f32.data(), q.data(), d.data(), sum.data(), stride}; }

  double value(std::size_t token, std::size_t col, bool int8_input) const {
    const std::size_t i = token * stride + col;
    return int8_input ? static_cast<double>(d[i / 32]) * q[i] : static_cast<double>(f32[i]);
  }
};

struct Expected {
  double value = 0;
  double tolerance = 0;
};

/// The twin: sums in double. Tolerance: a few roundings of each term and of each partial sum; the parts of a value
/// (scale times integer, minimum) can be larger than the value itself, but not than the block's largest by much.
Expected twin(const RandomRows& rows, const Input& input, std::size_t row, std::size_t token, bool int8_input) {
  Expected expected;
  double scale = 0;
  for (std::size_t begin = 0; begin < rows.n_cols; begin += 32) {
    double largest = 0;
    double size = 0;
    for (std::size_t c = begin; c < std::min(begin + 32, rows.n_cols); ++c) {
      expected.value += rows.value(row, c) * input.value(token, c, int8_input);
      largest = std::max(largest, std::fabs(rows.value(row, c)));
      size += std::fabs(input.value(token, c, int8_input));
    }
    scale += largest * size;
  }
  const double n_steps = 8 + static_cast<double>(rows.n_cols) / 32;
  expected.tolerance = scale * std::numeric_limits<float>::epsilon() * std::sqrt(n_steps);
  return expected;
}

DotJob make_job(const RandomRows& rows, const Input& input, float* out) {
  DotJob job{};
  job.rows = rows.data();
  job.row_bytes = rows.row_bytes;
  job.n_rows = rows.n_rows;
  job.n_cols = rows.n_cols;
  job.x = input.view();
  job.n_tokens = input.n_tokens;
  job.out = out;
  job.out_row_stride = 1;
  job.out_token_stride = rows.n_rows;
  return job;
}

std::vector<std::size_t> column_counts(const quant::DTypeTraits& traits) {
  if (traits.block_len == 1) return {1, 7, 31, 32, 33, 64, 100, 257, 576, 1000};
  std::vector<std::size_t> counts = {traits.block_len, 2 * traits.block_len, 5 * traits.block_len};
  if (traits.block_len == 32) counts.insert(counts.end(), {96, 576, 1024});
  return counts;
}

std::string name(const KernelTable& table, const quant::DTypeTraits& traits, std::size_t n_cols) {
  return base::text(table.name, " ", traits.name, " n_cols ", n_cols);
}

template <class F>
void for_all(F body) {
  std::mt19937 random(7);
  for (const auto* table : pi_test::usable_tables()) {
    for (const auto* traits : pi_test::weight_types()) {
      for (const std::size_t n_cols : column_counts(*traits)) {
        body(*table, *traits, table->types[quant::dtype_index(traits->type)].dot, n_cols, random);
      }
    }
  }
}

constexpr float kUntouched = 12345.5F;

}  // namespace

TEST(equals_the_double_twin) {
  for_all([](const KernelTable& table, const quant::DTypeTraits& traits, auto dot, std::size_t n_cols, auto& random) {
    for (const std::size_t n_rows : {1, 3, 4, 9}) {
      for (const std::size_t n_tokens : {1, 2, 4, 7}) {
        const RandomRows rows(traits.type, n_rows, n_cols, random, 3);
        const Input input(n_tokens, n_cols, random);
        std::vector<float> out(n_rows * n_tokens, kUntouched);
        dot(make_job(rows, input, out.data()));
        for (std::size_t r = 0; r < n_rows; ++r) {
          for (std::size_t t = 0; t < n_tokens; ++t) {
            const Expected expected = twin(rows, input, r, t, traits.int8_input);
            const double got = static_cast<double>(out[t * n_rows + r]);
            if (!(std::fabs(got - expected.value) <= expected.tolerance)) {
              pi_test::fail(__FILE__, __LINE__,
                            base::text(name(table, traits, n_cols), " row ", r, "/", n_rows, " token ", t, "/",
                                       n_tokens, ": ", got, " for ", expected.value, " +- ", expected.tolerance));
            }
          }
        }
      }
    }
  });
}

TEST(the_twin_would_notice_a_single_wrong_value) {
  // The tolerance must be far below what one wrong value does, or the comparison above means nothing.
  std::mt19937 random(3);
  for (const auto* traits : pi_test::weight_types()) {
    const std::size_t n_cols = traits->block_len == 1 ? 1000 : 4 * 256;
    const RandomRows rows(traits->type, 1, n_cols, random);
    const Input input(1, n_cols, random);
    const Expected expected = twin(rows, input, 0, 0, traits->int8_input);
    double typical = 0;
    for (std::size_t c = 0; c < n_cols; ++c) {
      typical += std::fabs(rows.value(0, c) * input.value(0, c, traits->int8_input)) / static_cast<double>(n_cols);
    }
    CHECK(expected.tolerance < typical / 10);
  }
}

TEST(bits_do_not_depend_on_grouping) {
  for_all([](const KernelTable& table, const quant::DTypeTraits& traits, auto dot, std::size_t n_cols, auto& random) {
    constexpr std::size_t kRows = 11;
    constexpr std::size_t kTokens = 9;
    const RandomRows rows(traits.type, kRows, n_cols, random);
    const Input input(kTokens, n_cols, random);
    std::vector<float> all(kRows * kTokens);
    dot(make_job(rows, input, all.data()));

    for (int round = 0; round < 6; ++round) {
      const auto row_ids = pi_test::random_subset(kRows, random);
      const auto token_ids = pi_test::random_subset(kTokens, random);
      std::vector<float> some(kRows * kTokens, kUntouched);
      DotJob job = make_job(rows, input, some.data());
      job.row_ids = row_ids.data();
      job.n_rows = row_ids.size();
      job.token_ids = token_ids.data();
      job.n_tokens = token_ids.size();
      dot(job);
      std::size_t n_written = 0;
      for (const std::int32_t r : row_ids) {
        for (const std::int32_t t : token_ids) {
          const std::size_t i = static_cast<std::size_t>(t) * kRows + static_cast<std::size_t>(r);
          if (std::memcmp(&some[i], &all[i], sizeof(float)) != 0) {
            pi_test::fail(__FILE__, __LINE__,
                          base::text(name(table, traits, n_cols), " row ", r, " token ", t, ": ", some[i],
                                     " in a list, ", all[i], " with all"));
          }
          some[i] = kUntouched;
          ++n_written;
        }
      }
      CHECK_EQ(n_written, row_ids.size() * token_ids.size());
      for (const float value : some) CHECK_EQ(value, kUntouched);
    }
  });
}

TEST(strides_of_the_output_are_obeyed) {
  std::mt19937 random(5);
  const RandomRows rows(DType::kQ8_0, 5, 64, random);
  const Input input(6, 64, random);
  for (const auto* table : pi_test::usable_tables()) {
    const auto dot = table->types[quant::dtype_index(rows.type)].dot;
    std::vector<float> by_token(30);
    dot(make_job(rows, input, by_token.data()));
    std::vector<float> by_row(5 * 10, kUntouched);
    DotJob job = make_job(rows, input, by_row.data());
    job.out_row_stride = 10;
    job.out_token_stride = 1;
    dot(job);
    for (std::size_t r = 0; r < 5; ++r) {
      for (std::size_t t = 0; t < 10; ++t) CHECK_EQ(by_row[r * 10 + t], t < 6 ? by_token[t * 5 + r] : kUntouched);
    }
  }
}

TEST(skipping_zero_blocks_keeps_the_bits) {
  for_all([](const KernelTable& table, const quant::DTypeTraits& traits, auto dot, std::size_t n_cols, auto& random) {
    constexpr std::size_t kRows = 6;
    constexpr std::size_t kTokens = 5;
    const RandomRows rows(traits.type, kRows, n_cols, random);
    const std::size_t n_blocks = (n_cols + 31) / 32;
    for (int round = 0; round < 4; ++round) {
      const auto listed = pi_test::random_subset(n_blocks, random);
      Input input(kTokens, n_cols, random);
      for (std::size_t t = 0; t < kTokens; ++t) {
        for (std::size_t c = 0; c < n_cols; ++c) {
          const bool kept = std::binary_search(listed.begin(), listed.end(), static_cast<std::int32_t>(c / 32));
          if (!kept) input.f32[t * input.stride + c] = c % 3 == 0 ? -0.0F : 0.0F;
        }
      }
      input.round();
      std::vector<float> all(kRows * kTokens);
      std::vector<float> some(kRows * kTokens);
      dot(make_job(rows, input, all.data()));
      DotJob job = make_job(rows, input, some.data());
      job.block_ids = listed.data();
      job.n_blocks = listed.size();
      dot(job);
      if (std::memcmp(all.data(), some.data(), all.size() * sizeof(float)) != 0) {
        pi_test::fail(__FILE__, __LINE__, name(table, traits, n_cols) + ": skipping changes bits");
      }
    }
  });
}

TEST(no_blocks_give_zero) {
  for_all([](const KernelTable&, const quant::DTypeTraits& traits, auto dot, std::size_t n_cols, auto& random) {
    const RandomRows rows(traits.type, 5, n_cols, random);
    const Input input(1, n_cols, random);
    std::vector<float> out(5, kUntouched);
    DotJob job = make_job(rows, input, out.data());
    const std::int32_t none = 0;
    job.block_ids = &none;
    job.n_blocks = 0;
    dot(job);
    const std::vector<float> zeros(5, 0.0F);
    CHECK(std::memcmp(out.data(), zeros.data(), 5 * sizeof(float)) == 0);
  });
}

TEST(largest_integers_do_not_overflow) {
  // Bytes of -128 and 127 against inputs of -127 and 127: pairs of products come closest to 16 bits.
  std::mt19937 random(9);
  for (const auto* traits : pi_test::weight_types()) {
    if (!traits->int8_input) continue;
    const std::size_t n_cols = 256;
    RandomRows rows(traits->type, 4, n_cols, random);
    Input input(4, n_cols, random);
    for (std::size_t i = 0; i < input.f32.size(); ++i) {
      input.f32[i] = (i / n_cols % 2 == 0 || random() % 2 == 0) ? -127.0F : 127.0F;
    }
    input.round();
    // All bytes of the block that may be values: those whose change leaves the values moderate.
    std::vector<float> values(traits->block_len);
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t b = 0; b < n_cols / traits->block_len; ++b) {
        std::uint8_t* block = rows.buffer.data() + 1 + r * rows.row_bytes + b * traits->block_bytes;
        for (std::size_t i = 0; i < traits->block_bytes; ++i) {
          const std::uint8_t before = block[i];
          block[i] = r % 2 == 0 ? 0x80 : (r == 1 ? 0x7F : 0xFF);
          powerinfer::dequantize(traits->type, block, traits->block_len, values.data());
          for (const float value : values) {
            if (!(std::fabs(value) < 8)) block[i] = before;
          }
        }
        powerinfer::dequantize(traits->type, block, traits->block_len, values.data());
        for (std::size_t i = 0; i < traits->block_len; ++i) {
          rows.values[r * n_cols + b * traits->block_len + i] = static_cast<double>(values[i]);
        }
      }
    }
    for (const auto* table : pi_test::usable_tables()) {
      std::vector<float> out(16);
      table->types[quant::dtype_index(traits->type)].dot(make_job(rows, input, out.data()));
      for (std::size_t r = 0; r < 4; ++r) {
        for (std::size_t t = 0; t < 4; ++t) {
          const Expected expected = twin(rows, input, r, t, true);
          CHECK(std::fabs(static_cast<double>(out[t * 4 + r]) - expected.value) <= expected.tolerance);
        }
      }
    }
  }
}

TEST_MAIN()
