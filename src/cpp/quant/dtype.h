// Registry of element types: block geometry by GGUF type number. The formats themselves live one header each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "powerinfer/gguf.h"

namespace powerinfer::quant {

struct DTypeTraits {
  DType type;
  const char* name;
  std::size_t block_len;    ///< values per block
  std::size_t block_bytes;  ///< bytes per block
  bool is_weight;           ///< has kernels (I32 does not)
  bool int8_input;          ///< its dot rounds the input to int8 in blocks of 32
};

inline constexpr std::size_t kNumDTypes = 11;

/// Null for a type this build does not know.
const DTypeTraits* find_traits(std::uint32_t ggml_type) noexcept;
const DTypeTraits& traits(DType type) noexcept;
/// Dense index 0..kNumDTypes-1, the column of kernel tables.
std::size_t dtype_index(DType type) noexcept;
/// "F32, F16, Q4_0, ..." for messages.
const std::string& supported_dtypes();
/// GGML's name of a type number, also of unsupported ones ("Q2_K"); "type 99" if unknown.
std::string ggml_type_name(std::uint32_t ggml_type);

}  // namespace powerinfer::quant
