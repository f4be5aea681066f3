// Numbers and names of the GGUF container, shared by reader and writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "powerinfer/gguf.h"
#include "quant/dtype.h"

namespace powerinfer::gguf {

inline constexpr std::string_view kMagicGguf = "GGUF";
inline constexpr std::string_view kMagicPowerInfer = "PWRI";
inline constexpr std::uint32_t kVersionWritten = 3;

inline constexpr std::string_view kAlignmentKey = "general.alignment";
inline constexpr std::uint64_t kDefaultAlignment = 32;
// The format asks for multiples of 8; the upper bound only keeps padding from becoming a weapon.
inline constexpr std::uint64_t kMinAlignment = 8;
inline constexpr std::uint64_t kMaxAlignment = 1 << 20;

inline constexpr std::size_t kMaxKeyBytes = 65535;       // GGUF specification
inline constexpr std::size_t kMaxTensorNameBytes = 255;  // the specification allows 64; other tools write a little more
inline constexpr std::uint32_t kMaxDims = 4;
// Over all arrays of a file. Far above any vocabulary; keeps what a hostile (perhaps sparse) file can make us allocate
// below 1 GiB.
inline constexpr std::size_t kMaxArrayElements = std::size_t{1} << 24;

/// Type numbers of metadata values in the file.
enum class ValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
inline constexpr std::uint32_t kNumValueTypes = 13;

/// "u8", "string", ... for messages.
std::string_view value_type_name(ValueType type);
/// Type of a scalar, or of an array's elements, by the variant's alternative (both variants have the same order).
ValueType scalar_type(std::size_t variant_index);
/// "u32" or "array of string".
std::string value_kind(const GgufValue& value);

bool is_valid_alignment(std::uint64_t alignment);

/// What is wrong with a key or tensor name; null: nothing.
const char* name_fault(std::string_view name, std::size_t max_bytes);

/// Only a list of indices may be empty (a split file's layer without neurons on the GPU).
bool may_be_empty(DType type, std::size_t n_dims);

/// The following are empty on overflow.
std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b);
std::optional<std::uint64_t> checked_align(std::uint64_t position, std::uint64_t alignment);
/// Bytes of a tensor whose first dimension the block length divides.
std::optional<std::uint64_t> tensor_bytes(const quant::DTypeTraits& traits, const std::vector<std::uint64_t>& shape);

}  // namespace powerinfer::gguf
