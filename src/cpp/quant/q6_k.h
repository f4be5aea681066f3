// Q6_K: 256 values of 6 bits with a signed byte scale per 16; value = (d * scale) * (q - 32). For sub-block 4n + k the
// low nibbles are in bytes 64n + 32(k % 2) ... (low half for k < 2), the upper two bits at bit 2k of high[32n ...].
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

struct Q6_K {
  struct Block {
    std::uint8_t q[128];
    std::uint8_t high[64];
    std::int8_t scales[16];
    std::uint8_t d[2];  // half
  };
  static constexpr std::uint32_t kType = 14;
  static constexpr const char* kName = "Q6_K";
  static constexpr std::size_t kBlockLen = 256;
  static constexpr std::size_t kBlockBytes = sizeof(Block);
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = true;
  static constexpr bool kSigned = true;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMin = false;

  template <class V>
  static SubBlock<V, ScalePair<V>> load(const std::uint8_t* row, std::size_t b) {
    const Block& block = reinterpret_cast<const Block*>(row)[b / 8];
    const std::size_t n = b % 8 / 4;
    const std::size_t k = b % 4;
    const auto low = V::field(V::load_bytes(block.q + 64 * n + 32 * (k % 2)), static_cast<int>(4 * (k / 2)), 15);
    const auto high = V::field(V::load_bytes(block.high + 32 * n), static_cast<int>(2 * k), 3);
    const float d = V::half(block.d);
    const std::int8_t* scales = block.scales + b % 8 * 2;
    return {V::minus(V::either(low, V::times16(high)), 32),
            {V::broadcast(d * static_cast<float>(scales[0])), V::broadcast(d * static_cast<float>(scales[1]))}};
  }

  template <class V>
  static PairScaledValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(block.q, block.d);
  }
};

}  // namespace powerinfer::quant
