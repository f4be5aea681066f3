// Q6_K: 256 values of 6 bits with a signed byte scale per 16; value = (d * scale) * (q - 32). For sub-block 4n + k the
// low nibbles are in bytes 64n + 32(k % 2) ... (low half for k < 2), the upper two bits at bit 2k of high[32n ...].
#pragma once

#include "quant/format.h"
#include "quant/search.h"

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

  static void quantize(const float* x, const float* weight, std::uint8_t* out) noexcept {
    constexpr std::size_t kN = 16;
    float scales[16];
    for (std::size_t j = 0; j < 16; ++j) {
      const float* values = x + kN * j;
      scales[j] = fit_scale<kN, 32>(values, weights_of(weight, j), extreme(values, kN) / -32.0F);
    }
    // The scale of largest magnitude becomes -128, which has no positive counterpart.
    const float d = base::half_to_float(base::float_to_half(extreme(scales, 16) / -128.0F));
    std::uint8_t codes[kBlockLen];
    Block& block = *reinterpret_cast<Block*>(out);
    store_half(d, block.d);
    for (std::size_t j = 0; j < 16; ++j) {
      const float* values = x + kN * j;
      const int scale = nearest_scale<kN, 32>(values, weights_of(weight, j), scales[j], d);
      block.scales[j] = static_cast<std::int8_t>(scale);
      const float inverse = inverse_or_zero(d * static_cast<float>(scale));
      for (std::size_t i = 0; i < kN; ++i) codes[kN * j + i] = truncate_to(values[i] * inverse + 32.5F, 63);
    }
    store(codes, block);
  }

 private:
  static const float* weights_of(const float* weight, std::size_t sub_block) noexcept {
    return weights_or_ones<16>(weight == nullptr ? weight : weight + 16 * sub_block);
  }

  static void store(const std::uint8_t* codes, Block& block) noexcept {
    for (std::size_t n = 0; n < 2; ++n) {
      for (std::size_t i = 0; i < 32; ++i) {
        const std::uint8_t* q = codes + 128 * n + i;  // of sub-blocks 4n + k: q[32 k]
        block.q[64 * n + i] = static_cast<std::uint8_t>((q[0] & 15U) | ((q[64] & 15U) << 4));
        block.q[64 * n + 32 + i] = static_cast<std::uint8_t>((q[32] & 15U) | ((q[96] & 15U) << 4));
        block.high[32 * n + i] =
            static_cast<std::uint8_t>(q[0] >> 4 | (q[32] >> 4) << 2 | (q[64] >> 4) << 4 | (q[96] >> 4) << 6);
      }
    }
  }
};

}  // namespace powerinfer::quant
