// See split_rules.h.
#include "tokenizer/split_rules.h"

#include <algorithm>
#include <string_view>

namespace powerinfer::tokenizer {

namespace {

// ---- rules that isolate the matches of one expression ----

/// `match_length(rest)` is the length of the match that starts at rest[0], 0 for none.
template <class MatchLength>
void split_matches(Chars piece, std::vector<std::size_t>& lengths, MatchLength match_length) {
  std::size_t unmatched = 0;
  for (std::size_t i = 0; i < piece.size();) {
    const std::size_t n = match_length(piece.subspan(i));
    if (n == 0) {
      ++unmatched;
      ++i;
      continue;
    }
    if (unmatched > 0) lengths.push_back(unmatched);
    unmatched = 0;
    lengths.push_back(n);
    i += n;
  }
  if (unmatched > 0) lengths.push_back(unmatched);
}

template <class Predicate>
std::size_t run_length(Chars rest, Predicate predicate) {
  const auto end = std::find_if_not(rest.begin(), rest.end(), predicate);
  return static_cast<std::size_t>(end - rest.begin());
}

bool is_number(const ClassifiedChar& c) noexcept { return c.kind == CharClass::kNumber; }
bool is_letter(const ClassifiedChar& c) noexcept { return c.kind == CharClass::kLetter; }
bool is_whitespace(const ClassifiedChar& c) noexcept { return c.kind == CharClass::kWhitespace; }
bool is_newline(const ClassifiedChar& c) noexcept { return c.code_point == U'\r' || c.code_point == U'\n'; }
bool is_digit(const ClassifiedChar& c) noexcept { return c.code_point >= U'0' && c.code_point <= U'9'; }
/// `[^\s\p{L}\p{N}]`
bool is_sign(const ClassifiedChar& c) noexcept { return !is_whitespace(c) && !is_letter(c) && !is_number(c); }

bool is_punctuation(const ClassifiedChar& c) noexcept {
  static constexpr std::u32string_view kSymbols = U"$+<=>^~|";
  return c.kind == CharClass::kPunctuation || kSymbols.find(c.code_point) != std::u32string_view::npos;
}

// ---- rules made of alternatives that cover everything ----

/// `next_length(rest)` is the length of the word that starts at rest[0]; 1 at least.
template <class NextLength>
void split_words(Chars piece, std::vector<std::size_t>& lengths, NextLength next_length) {
  for (std::size_t i = 0; i < piece.size();) {
    const std::size_t n = next_length(piece.subspan(i));
    lengths.push_back(n);
    i += n;
  }
}

enum class Case { kExact, kIgnored };

/// `'s|'t|'re|'ve|'m|'ll|'d`; 0 for none.
std::size_t contraction_length(Chars rest, Case letter_case) {
  static constexpr std::u32string_view kEndings[] = {U"s", U"t", U"m", U"d", U"re", U"ve", U"ll"};
  if (rest[0].code_point != U'\'') return 0;
  for (const std::u32string_view ending : kEndings) {
    if (rest.size() - 1 < ending.size()) continue;
    const bool equal = std::equal(ending.begin(), ending.end(), rest.begin() + 1, [&](char32_t want, const auto& have) {
      const bool upper = have.code_point >= U'A' && have.code_point <= U'Z';
      return want == (upper && letter_case == Case::kIgnored ? have.code_point + 32 : have.code_point);
    });
    if (equal) return 1 + ending.size();
  }
  return 0;
}

/// `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word behind it.
std::size_t whitespace_length(Chars rest) {
  const std::size_t n = run_length(rest, is_whitespace);
  return n > 1 && n < rest.size() ? n - 1 : n;
}

std::size_t next_gpt2(Chars rest) {
  if (const std::size_t n = contraction_length(rest, Case::kExact)) return n;
  const std::size_t space = rest[0].code_point == U' ' && rest.size() > 1 ? 1 : 0;
  const Chars body = rest.subspan(space);
  for (const auto predicate : {is_letter, is_number, is_sign}) {
    if (predicate(body[0])) return space + run_length(body, predicate);
  }
  return whitespace_length(rest);
}

/// `\s*[\r\n]+`: up to the last line end within the run of white space; 0 for none.
std::size_t line_ends_length(Chars rest) {
  std::size_t n = run_length(rest, is_whitespace);
  while (n > 0 && !is_newline(rest[n - 1])) --n;
  return n;
}

std::size_t next_llama3(Chars rest, std::size_t max_numbers) {
  if (const std::size_t n = contraction_length(rest, Case::kIgnored)) return n;
  if (is_number(rest[0])) return run_length(rest.first(std::min(rest.size(), max_numbers)), is_number);
  if (is_letter(rest[0]) || (!is_newline(rest[0]) && rest.size() > 1 && is_letter(rest[1]))) {
    return 1 + run_length(rest.subspan(1), is_letter);
  }
  const std::size_t space = rest[0].code_point == U' ' && rest.size() > 1 ? 1 : 0;
  if (is_sign(rest[space])) {
    const std::size_t n = space + run_length(rest.subspan(space), is_sign);
    return n + run_length(rest.subspan(n), is_newline);
  }
  if (const std::size_t n = line_ends_length(rest)) return n;
  return whitespace_length(rest);
}

}  // namespace

void split_punctuation(Chars piece, std::vector<std::size_t>& lengths) {
  split_matches(piece, lengths, [](Chars rest) { return run_length(rest, is_punctuation); });
}

void split_punctuation_and_backtick(Chars piece, std::vector<std::size_t>& lengths) {
  const auto matches = [](const ClassifiedChar& c) { return is_punctuation(c) || c.code_point == U'`'; };
  split_matches(piece, lengths, [&](Chars rest) { return run_length(rest, matches); });
}

void split_each_number(Chars piece, std::vector<std::size_t>& lengths) {
  split_matches(piece, lengths, [](Chars rest) { return run_length(rest.first(1), is_number); });
}

void split_number_runs(Chars piece, std::vector<std::size_t>& lengths) {
  split_matches(piece, lengths, [](Chars rest) { return run_length(rest, is_number); });
}

void split_digit_triples(Chars piece, std::vector<std::size_t>& lengths) {
  static constexpr std::size_t kTriple = 3;
  split_matches(piece, lengths, [](Chars rest) {
    const Chars head = rest.first(std::min(rest.size(), kTriple));
    return run_length(head, is_digit) == kTriple ? kTriple : 0;
  });
}

void split_words_gpt2(Chars piece, std::vector<std::size_t>& lengths) { split_words(piece, lengths, next_gpt2); }

void split_words_llama3(Chars piece, std::vector<std::size_t>& lengths) {
  split_words(piece, lengths, [](Chars rest) { return next_llama3(rest, 3); });
}

void split_words_qwen2(Chars piece, std::vector<std::size_t>& lengths) {
  split_words(piece, lengths, [](Chars rest) { return next_llama3(rest, 1); });
}

}  // namespace powerinfer::tokenizer
