// Q5_0: 32 values of 5 bits and a half scale; value = d * (q - 16). Low nibbles as in Q4_0, fifth bits in one word.
#pragma once

#include "quant/format.h"
#include "quant/search.h"

namespace powerinfer::quant {

struct Q5_0 {
  struct Block {
    std::uint8_t d[2];     // half
    std::uint8_t high[4];  // bit i belongs to column i
    std::uint8_t q[16];
  };
  static constexpr std::uint32_t kType = 6;
  static constexpr const char* kName = "Q5_0";
  static constexpr std::size_t kBlockLen = 32;
  static constexpr std::size_t kBlockBytes = sizeof(Block);
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = true;
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 16;
  static constexpr bool kHasMin = false;

  template <class V>
  static SubBlock<V> load(const std::uint8_t* row, std::size_t b) {
    const Block& block = reinterpret_cast<const Block*>(row)[b];
    return {V::either(V::load_nibbles(block.q), V::bits(block.high, 16)), V::broadcast_half(block.d)};
  }

  template <class V>
  static ScaledValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(V::minus(block.q, kOffset), block.d);
  }

  static void quantize(const float* x, std::uint8_t* out) noexcept { store(x, extreme(x, 32) / -16.0F, out); }
  static void quantize(const float* x, const float* weight, std::uint8_t* out) noexcept {
    const float d = fit_scale<32, 16>(x, weights_or_ones<32>(weight), extreme(x, 32) / -16.0F);
    store(x, base::half_to_float(base::float_to_half(d)), out);
  }

 private:
  static void store(const float* x, float d, std::uint8_t* out) noexcept {
    Block& block = *reinterpret_cast<Block*>(out);
    const float id = inverse_or_zero(d);
    store_half(d, block.d);
    std::uint32_t high = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      const unsigned first = truncate_to(x[i] * id + 16.5F, 31);
      const unsigned second = truncate_to(x[i + 16] * id + 16.5F, 31);
      block.q[i] = static_cast<std::uint8_t>((first & 15U) | ((second & 15U) << 4));
      high |= (first >> 4) << i | (second >> 4) << (i + 16);
    }
    for (int i = 0; i < 4; ++i) block.high[i] = static_cast<std::uint8_t>(high >> (8 * i));
  }
};

}  // namespace powerinfer::quant
