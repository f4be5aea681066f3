// Text to token ids and back: SentencePiece-style ("llama") and byte-level BPE ("gpt2") vocabularies from GGUF.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "powerinfer/gguf.h"

namespace powerinfer {

using Token = std::int32_t;
inline constexpr Token kNoToken = -1;

/// GGUF's token types (tokenizer.ggml.token_type).
enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct EncodeOptions {
  bool add_special = true;     ///< add BOS/EOS where the file says so
  bool parse_special = false;  ///< read control tokens ("<s>", "<|im_start|>") written out in the text
};

/// Immutable; may be shared by threads. Cheap to copy.
class Tokenizer {
 public:
  /// Builds from `tokenizer.ggml.*`. Throws FormatError on contradictions, UnsupportedError on another tokenizer
  /// model or an unknown pre-tokenizer (naming it and the supported list).
  static Tokenizer from_gguf(const GgufFile& file);

  /// Token ids of `text` (UTF-8; invalid bytes are treated as llama.cpp does).
  std::vector<Token> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Bytes of the tokens, joined as llama.cpp does: control tokens are left out unless `special`. For "llama"
  /// vocabularies with add_space_prefix, the one leading space that encoding added is removed.
  /// Throws InvalidArgument on an id out of range. The result may end inside a UTF-8 character.
  std::string decode(std::span<const Token> tokens, bool special = false) const;
  /// Bytes of one token, no space removed.
  std::string piece(Token token, bool special = false) const;

  std::int32_t n_vocab() const;
  const std::string& model() const;            ///< "llama" or "gpt2"
  const std::string& pre_tokenizer() const;    ///< "default", "gpt-2", ...; "" for "llama"
  const std::string& text(Token token) const;  ///< the vocabulary's own spelling
  TokenType type(Token token) const;
  float score(Token token) const;
  Token bos() const;  ///< kNoToken when the file has none; likewise below
  Token eos() const;
  Token unknown() const;
  bool add_bos() const;
  bool add_eos() const;
  /// True for every id that ends a generation: eos, eot, eom and the well-known texts ("<|im_end|>", "<|eot_id|>",
  /// "<|endoftext|>", "<end_of_turn>", "</s>" ...), as llama.cpp infers them.
  bool is_end_of_generation(Token token) const;
  std::span<const Token> end_of_generation() const;
  /// Id of a vocabulary entry, kNoToken when absent.
  Token find(std::string_view text) const;

  struct Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Incremental detokenizing: returns only whole UTF-8 characters; bytes that can still become one are held back.
/// A stream that begins with BOS is a whole text and comes out as decode() gives it; any other stream continues a text
/// and keeps its first token's leading space.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool special = false);
  /// Text that became complete with this token (may be empty). Bytes that can never become UTF-8 turn into U+FFFD.
  std::string push(Token token);
  /// What is left at the end; an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool special_;
  bool first_ = true;         // nothing was pushed yet
  bool drops_space_ = false;  // the next text token begins the whole text
  std::string pending_;       // the beginning of a character
};

}  // namespace powerinfer
