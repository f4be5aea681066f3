// Random weight rows of any type, for kernel tests, and the lists that tests go through.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/kernel_table.h"
#include "powerinfer/gguf.h"
#include "quant/dtype.h"

namespace pi_test {

using powerinfer::DType;
using powerinfer::kernels::KernelTable;

inline std::vector<const powerinfer::quant::DTypeTraits*> weight_types() {
  std::vector<const powerinfer::quant::DTypeTraits*> types;
  for (std::uint32_t number = 0; number < 64; ++number) {
    const auto* traits = powerinfer::quant::find_traits(number);
    if (traits != nullptr && traits->is_weight) types.push_back(traits);
  }
  return types;
}

/// Those that are compiled in and run here.
inline std::vector<const KernelTable*> usable_tables() {
  std::vector<const KernelTable*> tables;
  for (const auto& isa : powerinfer::kernels::compiled_isas()) {
    if (isa.supported()) tables.push_back(isa.table);
  }
  return tables;
}

/// Rows of random bytes: blocks are drawn until their largest value is between 1/64 and 4, so that every bit pattern of
/// the format's fields can appear, but none that makes sums meaningless. Rows start at odd addresses, as far apart as
/// packed rows plus `gap`; the buffer ends with the last row, so that a sanitizer sees reads beyond it.
struct RandomRows {
  DType type;
  std::size_t n_rows;
  std::size_t n_cols;
  std::size_t row_bytes;
  std::vector<std::uint8_t> buffer;
  std::vector<double> values;  // [n_rows, n_cols]

  RandomRows(DType dtype, std::size_t rows, std::size_t cols, std::mt19937& random, std::size_t gap = 0)
      : type(dtype), n_rows(rows), n_cols(cols), values(rows * cols) {
    const auto& traits = powerinfer::quant::traits(dtype);
    const std::size_t packed = powerinfer::dtype_row_bytes(dtype, cols);
    row_bytes = packed + gap;
    buffer.resize(1 + (rows - 1) * row_bytes + packed);
    std::vector<float> block(traits.block_len);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t b = 0; b < cols / traits.block_len; ++b) {
        std::uint8_t* bytes = buffer.data() + 1 + r * row_bytes + b * traits.block_bytes;
        do {
          for (std::size_t i = 0; i < traits.block_bytes; ++i) bytes[i] = static_cast<std::uint8_t>(random());
          powerinfer::dequantize(dtype, bytes, traits.block_len, block.data());
        } while (!moderate(block));
        for (std::size_t i = 0; i < traits.block_len; ++i) values[r * cols + b * traits.block_len + i] = block[i];
      }
    }
  }

  const std::uint8_t* data() const { return buffer.data() + 1; }
  double value(std::size_t row, std::size_t col) const { return values[row * n_cols + col]; }

 private:
  static bool moderate(const std::vector<float>& block) {
    float largest = 0;
    for (const float value : block) {
      if (!std::isfinite(value)) return false;
      largest = std::max(largest, std::fabs(value));
    }
    return largest >= 1.0F / 64 && largest <= 4;
  }
};

inline std::vector<float> random_floats(std::size_t n, std::mt19937& random, float scale = 1.0F) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> out(n);
  for (float& value : out) value = normal(random);
  return out;
}

/// A random ascending subset of 0..n-1 with at least one member.
inline std::vector<std::int32_t> random_subset(std::size_t n, std::mt19937& random) {
  std::vector<std::int32_t> out;
  while (out.empty()) {
    for (std::size_t i = 0; i < n; ++i) {
      if (random() % 2 == 0) out.push_back(static_cast<std::int32_t>(i));
    }
  }
  return out;
}

}  // namespace pi_test
