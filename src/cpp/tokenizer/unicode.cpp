// See unicode.h.
#include "tokenizer/unicode.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "tokenizer/unicode_tables.h"

namespace powerinfer::tokenizer {

namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

std::uint8_t byte_at(std::string_view text, std::size_t i) noexcept { return static_cast<std::uint8_t>(text[i]); }

bool is_continuation(std::uint8_t byte) noexcept { return (byte & 0xC0U) == 0x80U; }

CharClass search_class(char32_t code_point) noexcept {
  const auto ranges = class_ranges();
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                      [](char32_t value, const ClassRange& range) { return value < range.first; });
  if (after == ranges.begin()) return CharClass::kOther;
  const ClassRange& range = *(after - 1);
  return code_point <= range.last ? range.kind : CharClass::kOther;
}

/// What may follow a lead byte in well-formed UTF-8 (Unicode standard, table 3-7).
struct LeadRule {
  std::size_t length = 0;  ///< 0: no lead byte
  std::uint8_t second_min = 0x80;
  std::uint8_t second_max = 0xBF;
};

LeadRule lead_rule(std::uint8_t lead) noexcept {
  if (lead < 0x80) return {.length = 1};
  if (lead < 0xC2) return {};
  if (lead < 0xE0) return {.length = 2};
  if (lead == 0xE0) return {.length = 3, .second_min = 0xA0};
  if (lead == 0xED) return {.length = 3, .second_max = 0x9F};
  if (lead < 0xF0) return {.length = 3};
  if (lead == 0xF0) return {.length = 4, .second_min = 0x90};
  if (lead < 0xF4) return {.length = 4};
  if (lead == 0xF4) return {.length = 4, .second_max = 0x8F};
  return {};
}

/// Bytes from `start` on that form, or begin, a well-formed sequence: 0 when the first byte cannot.
std::size_t well_formed_prefix(std::string_view bytes, std::size_t start, const LeadRule& rule) noexcept {
  if (rule.length == 0) return 0;
  std::size_t n = 1;
  while (n < rule.length && start + n < bytes.size()) {
    const std::uint8_t byte = byte_at(bytes, start + n);
    const bool fits = n == 1 ? byte >= rule.second_min && byte <= rule.second_max : is_continuation(byte);
    if (!fits) break;
    ++n;
  }
  return n;
}

}  // namespace

CharClass char_class(char32_t code_point) noexcept {
  static constexpr std::size_t kAscii = 128;
  static const std::array<CharClass, kAscii> ascii = [] {
    std::array<CharClass, kAscii> classes{};
    for (std::size_t i = 0; i < kAscii; ++i) classes[i] = search_class(static_cast<char32_t>(i));
    return classes;
  }();
  return code_point < kAscii ? ascii[code_point] : search_class(code_point);
}

std::size_t utf8_length(char lead) noexcept {
  const auto byte = static_cast<std::uint8_t>(lead);
  if (byte < 0xC0) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

char32_t decode_utf8(std::string_view text, std::size_t& offset) noexcept {
  PI_DCHECK(offset < text.size());
  const std::uint8_t lead = byte_at(text, offset);
  if (lead < 0x80) {
    ++offset;
    return lead;
  }
  const std::size_t length = utf8_length(text[offset]);
  bool valid = length > 1 && lead < 0xF8 && length <= text.size() - offset;
  char32_t code_point = lead & (0x7FU >> length);
  for (std::size_t i = 1; valid && i < length; ++i) {
    const std::uint8_t byte = byte_at(text, offset + i);
    valid = is_continuation(byte);
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  if (!valid || code_point > kLastCodePoint) {
    ++offset;
    return kReplacementCharacter;
  }
  offset += length;
  return code_point;
}

void append_utf8(std::string& out, char32_t code_point) {
  PI_DCHECK(code_point <= kLastCodePoint);
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6));
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | (code_point >> 12));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | (code_point >> 18));
    put(0x80U | ((code_point >> 12) & 0x3FU));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

std::string take_complete_utf8(std::string& bytes) {
  std::string out;
  out.reserve(bytes.size());
  std::size_t i = 0;
  while (i < bytes.size()) {
    const LeadRule rule = lead_rule(byte_at(bytes, i));
    const std::size_t n = well_formed_prefix(bytes, i, rule);
    if (n > 0 && n == rule.length) {
      out.append(bytes, i, n);
    } else if (n > 0 && i + n == bytes.size()) {
      break;
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    i += std::max<std::size_t>(n, 1);
  }
  bytes.erase(0, i);
  return out;
}

}  // namespace powerinfer::tokenizer
