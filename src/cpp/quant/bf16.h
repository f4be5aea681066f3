// BF16: the upper halves of floats.
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

struct BF16 {
  static constexpr std::uint32_t kType = 30;
  static constexpr const char* kName = "BF16";
  static constexpr std::size_t kBlockLen = 1;
  static constexpr std::size_t kBlockBytes = 2;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = false;

  template <class V>
  struct Values {
    const std::uint8_t* data;
    typename V::F at(std::size_t k) const { return V::load_bf16(data + k * V::kLanes * kElementBytes); }
  };
  template <class V>
  static Values<V> values(const std::uint8_t* row, std::size_t b) {
    return {row + b * 32 * kElementBytes};
  }

  static void quantize(const float* x, std::uint8_t* out) noexcept {
    const std::uint16_t bits = base::float_to_bfloat16(*x);
    out[0] = static_cast<std::uint8_t>(bits);
    out[1] = static_cast<std::uint8_t>(bits >> 8);
  }
};

}  // namespace powerinfer::quant
