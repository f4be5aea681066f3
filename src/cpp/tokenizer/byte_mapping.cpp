// See byte_mapping.h.
#include "tokenizer/byte_mapping.h"

namespace powerinfer::tokenizer {

namespace {

bool stands_for_itself(std::size_t byte) noexcept {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

}  // namespace

ByteMapping::ByteMapping() noexcept {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (std::size_t byte = 0; byte < code_points_.size(); ++byte) {
    const char32_t code_point = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    code_points_[byte] = code_point;
    bytes_[code_point] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::uint8_t> ByteMapping::byte(char32_t code_point) const noexcept {
  if (code_point >= bytes_.size() || bytes_[code_point] < 0) return std::nullopt;
  return static_cast<std::uint8_t>(bytes_[code_point]);
}

const ByteMapping& byte_mapping() noexcept {
  static const ByteMapping mapping;
  return mapping;
}

}  // namespace powerinfer::tokenizer
