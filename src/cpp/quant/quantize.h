// f32 to blocks, bit for bit as the gguf package's quantizers (for finite input).
#pragma once

#include <cstddef>

#include "powerinfer/gguf.h"

namespace powerinfer::quant {

/// Whether quantize() knows the type: F32, F16, BF16 and the legacy 32-blocks do; the K types and I32 do not.
bool can_quantize(DType type) noexcept;

/// Quantizes x [n] into `out` [dtype_row_bytes(type, n)]. Throws InvalidArgument if n is no multiple of the block
/// length, UnsupportedError where can_quantize() is false.
void quantize(DType type, const float* x, std::size_t n, void* out);

}  // namespace powerinfer::quant
