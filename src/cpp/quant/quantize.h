// f32 to blocks: F32, F16, BF16 and the legacy 32-blocks bit for bit as the gguf package's quantizers (for finite input
// and without an importance), the K types by the search of quant/search.h.
#pragma once

#include <cstddef>

#include "powerinfer/gguf.h"

namespace powerinfer::quant {

/// Whether quantize() knows the type: all but I32.
bool can_quantize(DType type) noexcept;

/// Quantizes x [n] into `out` [dtype_row_bytes(type, n)]. `importance` [n] (null: none) weighs the squared errors where
/// the type has a choice of scales: all but F32, F16, BF16 and Q8_0. Throws InvalidArgument if n is no multiple of the
/// block length, UnsupportedError where can_quantize() is false.
void quantize(DType type, const float* x, std::size_t n, void* out, const float* importance = nullptr);

}  // namespace powerinfer::quant
