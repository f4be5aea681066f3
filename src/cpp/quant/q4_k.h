// Q4_K: 256 nibbles in 8 sub-blocks of 32; value = (d * scale) * q - (dmin * min), scales and mins of 6 bits.
// Bytes 32g .. 32g+31 hold sub-blocks 2g (low nibbles) and 2g + 1 (high).
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

/// The 6-bit scales and minima of Q4_K and Q5_K: eight of each in 12 bytes.
struct PackedScales {
  std::uint8_t bytes[12];
};
static constexpr std::uint8_t packed_scale(const PackedScales& packed, std::size_t j) noexcept {
  const std::uint8_t* p = packed.bytes;
  if (j < 4) return static_cast<std::uint8_t>(p[j] & 63U);
  return static_cast<std::uint8_t>((p[j + 4] & 15U) | ((p[j - 4] >> 2) & 48U));
}
static constexpr std::uint8_t packed_min(const PackedScales& packed, std::size_t j) noexcept {
  const std::uint8_t* p = packed.bytes;
  if (j < 4) return static_cast<std::uint8_t>(p[j + 4] & 63U);
  return static_cast<std::uint8_t>((p[j + 4] >> 4) | ((p[j] >> 2) & 48U));
}

struct Q4_K {
  struct Block {
    std::uint8_t d[2];     // half
    std::uint8_t dmin[2];  // half
    PackedScales scales;
    std::uint8_t q[128];
  };
  static constexpr std::uint32_t kType = 12;
  static constexpr const char* kName = "Q4_K";
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
    return {V::field(V::load_bytes(block.q + 32 * (j / 2)), static_cast<int>(4 * (j % 2)), 15), V::broadcast(d),
            V::broadcast(-m)};
  }

  template <class V>
  static ScaledMinValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(block.q, block.d, block.m);
  }
};

}  // namespace powerinfer::quant
