// Q5_K: Q4_K with a fifth bit per value; bit j of high[i] belongs to column i of sub-block j.
#pragma once

#include "quant/format.h"
#include "quant/q4_k.h"

namespace powerinfer::quant {

struct Q5_K {
  struct Block {
    std::uint8_t d[2];     // half
    std::uint8_t dmin[2];  // half
    PackedScales scales;
    std::uint8_t high[32];
    std::uint8_t q[128];
  };
  static constexpr std::uint32_t kType = 13;
  static constexpr const char* kName = "Q5_K";
  static constexpr std::size_t kBlockLen = 256;
  static constexpr std::size_t kBlockBytes = sizeof(Block);
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = true;
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMin = true;

  template <class V>
  static SubBlockMin<V> load(const std::uint8_t* row, std::size_t b) {
    const Block& block = reinterpret_cast<const Block*>(row)[b / 8];
    const std::size_t j = b % 8;
    const float d = V::half(block.d) * static_cast<float>(packed_scale(block.scales, j));
    const float m = V::half(block.dmin) * static_cast<float>(packed_min(block.scales, j));
    const auto low = V::field(V::load_bytes(block.q + 32 * (j / 2)), static_cast<int>(4 * (j % 2)), 15);
    const auto high = V::field(V::load_bytes(block.high), static_cast<int>(j), 1);
    return {V::either(low, V::times16(high)), V::broadcast(d), V::broadcast(-m)};
  }

  template <class V>
  static ScaledMinValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(block.q, block.d, block.m);
  }

  static void quantize(const float* x, const float* weight, std::uint8_t* out) noexcept {
    const AffineBlock found = fit_affine_block<31>(x, weight);
    Block& block = *reinterpret_cast<Block*>(out);
    store_half(found.d, block.d);
    store_half(found.dmin, block.dmin);
    block.scales = found.scales;
    store_low_nibbles(found.q, block.q);
    for (std::size_t i = 0; i < 32; ++i) {
      unsigned high = 0;
      for (std::size_t j = 0; j < 8; ++j) high |= static_cast<unsigned>(found.q[32 * j + i] >> 4) << j;
      block.high[i] = static_cast<std::uint8_t>(high);
    }
  }
};

}  // namespace powerinfer::quant
