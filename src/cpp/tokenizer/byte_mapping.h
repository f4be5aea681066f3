// The printable stand-ins that byte-level BPE vocabularies use for bytes (source: GPT-2's tokenizer): the printable
// Latin-1 characters stand for themselves, the other bytes for U+0100, U+0101, ... in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace powerinfer::tokenizer {

class ByteMapping {
 public:
  ByteMapping() noexcept;

  char32_t code_point(std::uint8_t byte) const noexcept { return code_points_[byte]; }
  /// Nothing for code points that stand for no byte.
  std::optional<std::uint8_t> byte(char32_t code_point) const noexcept;

 private:
  static constexpr std::size_t kEnd = 0x100 + 68;  // 68 bytes are not printable

  std::array<char32_t, 256> code_points_{};
  std::array<std::int16_t, kEnd> bytes_{};  // by code point; -1: none
};

const ByteMapping& byte_mapping() noexcept;

}  // namespace powerinfer::tokenizer
