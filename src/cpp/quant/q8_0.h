// Q8_0: 32 signed bytes and a half scale; value = d * q.
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

struct Q8_0 {
  struct Block {
    std::uint8_t d[2];  // half
    std::uint8_t q[32];
  };
  static constexpr std::uint32_t kType = 8;
  static constexpr const char* kName = "Q8_0";
  static constexpr std::size_t kBlockLen = 32;
  static constexpr std::size_t kBlockBytes = sizeof(Block);
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = true;
  static constexpr bool kSigned = true;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMin = false;

  template <class V>
  static SubBlock<V> load(const std::uint8_t* row, std::size_t b) {
    const Block& block = reinterpret_cast<const Block*>(row)[b];
    return {V::load_bytes(block.q), V::broadcast_half(block.d)};
  }

  template <class V>
  static ScaledValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(block.q, block.d);
  }

  static void quantize(const float* x, std::uint8_t* out) noexcept {
    Block& block = *reinterpret_cast<Block*>(out);
    const float d = magnitude(extreme(x, 32)) / 127.0F;
    const float id = inverse_or_zero(d);
    store_half(d, block.d);
    for (std::size_t i = 0; i < 32; ++i) {
      // Rounds half away from zero: whole part plus one if twice the (exact) rest reaches 1.
      const float scaled = x[i] * id;
      const float size = magnitude(scaled);
      const std::uint8_t whole = truncate_to(size, 127);
      const int rounded = whole + (2.0F * (size - static_cast<float>(whole)) >= 1.0F && whole < 127 ? 1 : 0);
      block.q[i] = static_cast<std::uint8_t>(scaled < 0.0F ? -rounded : rounded);
    }
  }
};

}  // namespace powerinfer::quant
