// Code points, their UTF-8 and the few character classes that tokenization asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace powerinfer::tokenizer {

/// General category L, N or P, or the White_Space property, of Unicode 15.1; everything else is kOther.
enum class CharClass : std::uint8_t { kOther, kLetter, kNumber, kPunctuation, kWhitespace };

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

CharClass char_class(char32_t code_point) noexcept;

/// The code point at `offset` (< text.size()), which moves behind it. As tolerant as llama.cpp: surrogates and
/// overlong forms are taken as they are; a byte that starts no sequence is U+FFFD by itself.
char32_t decode_utf8(std::string_view text, std::size_t& offset) noexcept;

/// Appends the UTF-8 of a code point up to U+10FFFF.
void append_utf8(std::string& out, char32_t code_point);

/// Length that a lead byte announces: 1 to 4; 1 for continuation bytes.
std::size_t utf8_length(char lead) noexcept;

/// Removes from `bytes` all that is decided and returns it as valid UTF-8: whole characters as they are, and one
/// U+FFFD for each longest sequence that cannot become a character any more (the Unicode standard's practice).
/// What stays in `bytes`, at most 3 bytes, is the beginning of a character.
std::string take_complete_utf8(std::string& bytes);

}  // namespace powerinfer::tokenizer
