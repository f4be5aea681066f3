// I32: indices. Not a weight: it has a size, but no kernels.
#pragma once

#include "quant/format.h"

namespace powerinfer::quant {

struct I32 {
  static constexpr std::uint32_t kType = 26;
  static constexpr const char* kName = "I32";
  static constexpr std::size_t kBlockLen = 1;
  static constexpr std::size_t kBlockBytes = 4;
  static constexpr bool kIsWeight = false;
  static constexpr bool kInt8Input = false;
};

}  // namespace powerinfer::quant
