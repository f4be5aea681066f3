// F32: plain floats.
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

struct F32 {
  static constexpr std::uint32_t kType = 0;
  static constexpr const char* kName = "F32";
  static constexpr std::size_t kBlockLen = 1;
  static constexpr std::size_t kBlockBytes = 4;
  static constexpr std::size_t kElementBytes = 4;
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = false;

  template <class V>
  struct Values {
    const std::uint8_t* data;
    typename V::F at(std::size_t k) const { return V::load_f32(data + k * V::kLanes * kElementBytes); }
  };
  template <class V>
  static Values<V> values(const std::uint8_t* row, std::size_t b) {
    return {row + b * 32 * kElementBytes};
  }

  static void quantize(const float* x, std::uint8_t* out) noexcept {
    const std::uint32_t bits = base::float_to_bits(*x);
    for (int i = 0; i < 4; ++i) out[i] = static_cast<std::uint8_t>(bits >> (8 * i));
  }
};

}  // namespace powerinfer::quant
