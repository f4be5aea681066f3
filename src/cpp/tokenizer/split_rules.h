// The rules that cut text into the words byte-level BPE works on. Each one stands for a regular expression that is
// named in its comment; it is applied to the pieces the rule before it left, and sees nothing beyond a piece.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tokenizer/unicode.h"

namespace powerinfer::tokenizer {

struct ClassifiedChar {
  char32_t code_point;
  CharClass kind;
};

/// One piece of text; `size()` characters.
using Chars = std::span<const ClassifiedChar>;

/// Appends the length of each word of `piece` (none empty, together all of it) to `lengths`.
using SplitRule = void (*)(Chars piece, std::vector<std::size_t>& lengths);

/// `[\p{P}$+<=>^~|]+` and all between its matches.
void split_punctuation(Chars piece, std::vector<std::size_t>& lengths);
/// The same with the backtick.
void split_punctuation_and_backtick(Chars piece, std::vector<std::size_t>& lengths);
/// `\p{N}` and all between.
void split_each_number(Chars piece, std::vector<std::size_t>& lengths);
/// `\p{N}+` and all between.
void split_number_runs(Chars piece, std::vector<std::size_t>& lengths);
/// `[0-9][0-9][0-9]` and all between.
void split_digit_triples(Chars piece, std::vector<std::size_t>& lengths);
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
void split_words_gpt2(Chars piece, std::vector<std::size_t>& lengths);
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
void split_words_llama3(Chars piece, std::vector<std::size_t>& lengths);
/// As llama3 with single numbers: `\p{N}`.
void split_words_qwen2(Chars piece, std::vector<std::size_t>& lengths);

}  // namespace powerinfer::tokenizer
