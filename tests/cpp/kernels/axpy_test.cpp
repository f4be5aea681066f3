// y += h * row of every type on every instruction set, and the kernels' dequantize.
#include <cstring>

#include "base/text.h"
#include "kernels/random_rows.h"
#include "test.h"

using namespace powerinfer;
using namespace powerinfer::kernels;
using pi_test::RandomRows;

namespace {

struct Part {
  std::size_t begin;
  std::size_t n_cols;
};

/// Whole rows, and parts that begin at a multiple of 32 (ragged ends only for types of single values).
std::vector<Part> parts(const quant::DTypeTraits& traits) {
  if (traits.block_len == 1) return {{0, 300}, {32, 268}, {64, 33}, {0, 1}, {256, 44}, {96, 64}};
  const std::size_t width = std::max<std::size_t>(traits.block_len, 128) * 2;
  return {{0, width}, {32, width - 32}, {64, 32}, {width - 32, 32}, {96, 96}};
}

std::size_t row_width(const quant::DTypeTraits& traits) {
  return traits.block_len == 1 ? 300 : std::max<std::size_t>(traits.block_len, 128) * 2;
}

AxpyJob make_job(const RandomRows& rows, const std::vector<std::int32_t>& ids, Part part, const float* h, float* y) {
  return {rows.data(), rows.row_bytes, ids.data(), ids.size(), part.begin, part.n_cols, h, y};
}

}  // namespace

TEST(equals_the_chain_in_list_order) {
  // A column's value is one chain, so it can be told to the bit: with fused steps, or with two roundings per step.
  std::mt19937 random(11);
  for (const auto* table : pi_test::usable_tables()) {
    for (const auto* traits : pi_test::weight_types()) {
      const std::size_t n_rows = 13;
      const RandomRows rows(traits->type, n_rows, row_width(*traits), random, 5);
      const auto h = pi_test::random_floats(n_rows, random);
      for (const Part part : parts(*traits)) {
        for (int round = 0; round < 4; ++round) {
          auto ids = pi_test::random_subset(n_rows, random);
          std::shuffle(ids.begin(), ids.end(), random);
          auto y = pi_test::random_floats(part.n_cols, random);
          auto fused = y;
          auto stepwise = y;
          std::vector<double> exact(y.begin(), y.end());
          std::vector<double> size(part.n_cols);
          for (const std::int32_t id : ids) {
            const auto r = static_cast<std::size_t>(id);
            for (std::size_t c = 0; c < part.n_cols; ++c) {
              const auto w = static_cast<float>(rows.value(r, part.begin + c));
              fused[c] = std::fma(h[r], w, fused[c]);
              const float product = h[r] * w;
              stepwise[c] = product + stepwise[c];
              exact[c] += static_cast<double>(h[r]) * static_cast<double>(w);
              size[c] += std::fabs(static_cast<double>(product));
            }
          }
          table->types[quant::dtype_index(traits->type)].axpy(make_job(rows, ids, part, h.data(), y.data()));
          const std::size_t n_bytes = y.size() * sizeof(float);
          if (std::memcmp(y.data(), fused.data(), n_bytes) != 0 &&
              std::memcmp(y.data(), stepwise.data(), n_bytes) != 0) {
            pi_test::fail(__FILE__, __LINE__,
                          base::text(table->name, " ", traits->name, " columns ", part.begin, "+", part.n_cols,
                                     ": not a chain in list order"));
          }
          for (std::size_t c = 0; c < part.n_cols; ++c) {
            CHECK(std::fabs(static_cast<double>(y[c]) - exact[c]) <= 1e-6 * (size[c] + 1));
          }
        }
      }
    }
  }
}

TEST(bits_do_not_depend_on_how_lists_and_columns_are_cut) {
  std::mt19937 random(12);
  for (const auto* table : pi_test::usable_tables()) {
    for (const auto* traits : pi_test::weight_types()) {
      const std::size_t width = row_width(*traits);
      const std::size_t n_rows = 10;
      const RandomRows rows(traits->type, n_rows, width, random);
      const auto h = pi_test::random_floats(n_rows, random);
      const auto axpy = table->types[quant::dtype_index(traits->type)].axpy;
      std::vector<std::int32_t> ids(n_rows);
      for (std::size_t i = 0; i < n_rows; ++i) ids[i] = static_cast<std::int32_t>(i);

      const auto start = pi_test::random_floats(width, random);
      auto whole = start;
      AxpyJob all = make_job(rows, ids, {0, width}, h.data(), whole.data());
      all.row_ids = nullptr;  // all rows, in order
      axpy(all);

      auto cut = start;
      const std::vector<std::int32_t> first(ids.begin(), ids.begin() + 3);
      const std::vector<std::int32_t> second(ids.begin() + 3, ids.end());
      for (const auto& list : {first, second}) {
        axpy(make_job(rows, list, {0, 64}, h.data(), cut.data()));
        axpy(make_job(rows, list, {64, width - 64}, h.data(), cut.data() + 64));
      }
      CHECK(std::memcmp(whole.data(), cut.data(), width * sizeof(float)) == 0);
    }
  }
}

TEST(a_listed_row_with_zero_h_changes_nothing) {
  std::mt19937 random(13);
  for (const auto* table : pi_test::usable_tables()) {
    for (const auto* traits : pi_test::weight_types()) {
      const std::size_t width = row_width(*traits);
      const RandomRows rows(traits->type, 6, width, random);
      const std::vector<float> h = {0.5F, 0.0F, -0.0F, 1.5F, 0.0F, -2.0F};
      const auto axpy = table->types[quant::dtype_index(traits->type)].axpy;
      std::vector<float> listed(width, 1.0F);
      std::vector<float> skipped(width, 1.0F);
      axpy(make_job(rows, {0, 1, 2, 3, 4, 5}, {0, width}, h.data(), listed.data()));
      axpy(make_job(rows, {0, 3, 5}, {0, width}, h.data(), skipped.data()));
      CHECK(std::memcmp(listed.data(), skipped.data(), width * sizeof(float)) == 0);
    }
  }
}

TEST(dequantize_equals_the_public_one) {
  std::mt19937 random(14);
  for (const auto* table : pi_test::usable_tables()) {
    for (const auto* traits : pi_test::weight_types()) {
      for (const std::size_t n : {1, 8, 31, 32, 33, 96, 256, 1024, 1027}) {
        if (n % traits->block_len != 0) continue;
        const RandomRows rows(traits->type, 1, n, random);
        std::vector<float> out(n);
        table->types[quant::dtype_index(traits->type)].dequantize(rows.data(), n, out.data());
        for (std::size_t i = 0; i < n; ++i) CHECK_EQ(static_cast<double>(out[i]), rows.value(0, i));
      }
    }
  }
}

TEST(types_without_kernels_are_null) {
  for (const auto* table : pi_test::usable_tables()) {
    const auto& kernels = table->types[quant::dtype_index(DType::kI32)];
    CHECK(kernels.dot == nullptr && kernels.axpy == nullptr && kernels.dequantize == nullptr);
  }
}

TEST_MAIN()
