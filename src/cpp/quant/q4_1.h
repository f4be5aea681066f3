// Q4_1: 32 nibbles, a half scale and a half minimum; value = d * q + m. Nibbles as in Q4_0.
#pragma once

#include "quant/format.h"
#include "quant/search.h"

namespace powerinfer::quant {

struct Q4_1 {
  struct Block {
    std::uint8_t d[2];  // half
    std::uint8_t m[2];  // half
    std::uint8_t q[16];
  };
  static constexpr std::uint32_t kType = 3;
  static constexpr const char* kName = "Q4_1";
  static constexpr std::size_t kBlockLen = 32;
  static constexpr std::size_t kBlockBytes = sizeof(Block);
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = true;
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMin = true;

  template <class V>
  static SubBlockMin<V> load(const std::uint8_t* row, std::size_t b) {
    const Block& block = reinterpret_cast<const Block*>(row)[b];
    return {V::load_nibbles(block.q), V::broadcast_half(block.d), V::broadcast_half(block.m)};
  }

  template <class V>
  static ScaledMinValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(block.q, block.d, block.m);
  }

  static void quantize(const float* x, std::uint8_t* out) noexcept {
    const auto [low, high] = range_of(x, 32);
    const float d = (high - low) / 15.0F;
    store(x, low, d, inverse_or_zero(d), out);
  }
  static void quantize(const float* x, const float* weight, std::uint8_t* out) noexcept {
    const auto fit = fit_affine<32, 15, Offsets::kAny>(x, weights_or_ones<32>(weight));
    const float d = base::half_to_float(base::float_to_half(fit.scale));
    const float low = base::half_to_float(base::float_to_half(fit.offset));
    store(x, low, d, inverse_or_zero(d), out);
  }

 private:
  static void store(const float* x, float low, float d, float id, std::uint8_t* out) noexcept {
    Block& block = *reinterpret_cast<Block*>(out);
    store_half(d, block.d);
    store_half(low, block.m);
    for (std::size_t i = 0; i < 16; ++i) {
      const unsigned first = truncate_to((x[i] - low) * id + 0.5F, 15);
      const unsigned second = truncate_to((x[i + 16] - low) * id + 0.5F, 15);
      block.q[i] = static_cast<std::uint8_t>(first | (second << 4));
    }
  }
};

}  // namespace powerinfer::quant
