// A vocabulary as the file gives it: texts, scores and types of the tokens, and the ids with a meaning.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "powerinfer/tokenizer.h"

namespace powerinfer::tokenizer {

/// What a tokenizer model assumes where the file has no key for it (as llama.cpp does).
struct VocabDefaults {
  Token bos = kNoToken;
  Token eos = kNoToken;
  Token unknown = kNoToken;
  bool add_bos = false;
};

struct Vocab {
  Vocab() = default;
  Vocab(const Vocab&) = delete;  // `ids` points into `texts`
  Vocab& operator=(const Vocab&) = delete;

  std::vector<std::string> texts;  // [n_vocab]
  std::vector<float> scores;       // [n_vocab]
  std::vector<TokenType> types;    // [n_vocab]
  /// Of entries with the same text the last one is found.
  std::unordered_map<std::string_view, Token> ids;
  std::size_t longest_text = 0;  // bytes

  Token bos = kNoToken;
  Token eos = kNoToken;
  Token unknown = kNoToken;
  bool add_bos = false;
  bool add_eos = false;
  bool joins_spaces = false;             ///< a text loses the spaces at its ends, and all but one of a run
  std::vector<Token> end_of_generation;  // ascending
  std::vector<bool> eats_space_behind;   // [n_vocab] white space behind a special token belongs to it

  Token find(std::string_view text) const;
  std::size_t size() const noexcept { return texts.size(); }
  TokenType type(Token token) const { return types[static_cast<std::size_t>(token)]; }
  /// Left out of decoded text, and found in a text only by parse_special.
  bool is_hidden(Token token) const { return type(token) == TokenType::kControl || type(token) == TokenType::kUnknown; }
};

/// Reads the entries `tokenizer.ggml.{tokens,scores,token_type}` and the special ids. Throws FormatError.
void load_vocab(const GgufFile& file, const VocabDefaults& defaults, Vocab& vocab);

/// Finds the tokens that end a generation, by id and by well-known text, and corrects types that contradict them
/// (special_ids.cpp; the rules and texts are llama.cpp's).
void infer_special_ids(const GgufFile& file, Vocab& vocab);

/// The id under `key`; `fallback` (or kNoToken, if that is no entry either) when the key is absent or out of range.
Token special_id(const GgufFile& file, std::string_view key, Token fallback, const Vocab& vocab);

}  // namespace powerinfer::tokenizer
