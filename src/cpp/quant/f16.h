// F16: IEEE halves.
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

struct F16 {
  static constexpr std::uint32_t kType = 1;
  static constexpr const char* kName = "F16";
  static constexpr std::size_t kBlockLen = 1;
  static constexpr std::size_t kBlockBytes = 2;
  static constexpr std::size_t kElementBytes = 2;
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = false;

  template <class V>
  struct Values {
    const std::uint8_t* data;
    typename V::F at(std::size_t k) const { return V::load_f16(data + k * V::kLanes * kElementBytes); }
  };
  template <class V>
  static Values<V> values(const std::uint8_t* row, std::size_t b) {
    return {row + b * 32 * kElementBytes};
  }

  static void quantize(const float* x, std::uint8_t* out) noexcept { store_half(*x, out); }
};

}  // namespace powerinfer::quant
