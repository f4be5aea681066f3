#include "gguf/format.h"

#include <bit>
#include <string>
#include <vector>

#include "base/text.h"

namespace powerinfer::gguf {

std::string_view value_type_name(ValueType type) {
  static constexpr std::string_view kNames[kNumValueTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                              "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::uint32_t>(type)];
}

ValueType scalar_type(std::size_t variant_index) {
  // The variants have no alternative for kArray, which sits in the middle of the file's numbers.
  const auto number = static_cast<std::uint32_t>(variant_index);
  return static_cast<ValueType>(number < static_cast<std::uint32_t>(ValueType::kArray) ? number : number + 1);
}

std::string value_kind(const GgufValue& value) {
  if (const auto* scalar = std::get_if<GgufScalar>(&value)) {
    return std::string(value_type_name(scalar_type(scalar->index())));
  }
  return base::text("array of ", value_type_name(scalar_type(std::get<GgufArray>(value).index())));
}

bool is_valid_alignment(std::uint64_t alignment) {
  return std::has_single_bit(alignment) && alignment >= kMinAlignment && alignment <= kMaxAlignment;
}

const char* name_fault(std::string_view name, std::size_t max_bytes) {
  if (name.empty()) return "is empty";
  if (name.size() > max_bytes) return "is too long";
  if (name.find('\0') != std::string_view::npos) return "contains a zero byte";
  return nullptr;
}

bool may_be_empty(DType type, std::size_t n_dims) { return type == DType::kI32 && n_dims == 1; }

std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

std::optional<std::uint64_t> checked_align(std::uint64_t position, std::uint64_t alignment) {
  const std::uint64_t padding = (alignment - position % alignment) % alignment;
  if (position > std::numeric_limits<std::uint64_t>::max() - padding) return std::nullopt;
  return position + padding;
}

std::optional<std::uint64_t> tensor_bytes(const quant::DTypeTraits& traits, const std::vector<std::uint64_t>& shape) {
  std::optional<std::uint64_t> n_bytes = checked_multiply(shape[0] / traits.block_len, traits.block_bytes);
  for (std::size_t i = 1; i < shape.size() && n_bytes; ++i) n_bytes = checked_multiply(*n_bytes, shape[i]);
  return n_bytes;
}

}  // namespace powerinfer::gguf
