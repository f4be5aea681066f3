// What differs between tokenizer models: how plain text becomes tokens, and how a token's text becomes bytes again.
// A new model is one class with this interface and one line in kModels (encoder.cpp).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

namespace powerinfer::tokenizer {

/// What a plain part of a text follows; the beginning counts as a special token.
enum class Preceding { kSpecial, kText };

class Encoder {
 public:
  virtual ~Encoder() = default;

  /// Appends the tokens of `text`, which is not empty, is shorter than 2^30 bytes and holds no special token.
  /// Thread-safe.
  virtual void encode(const Vocab& vocab, std::string_view text, Preceding preceding,
                      std::vector<Token>& out) const = 0;

  /// The bytes that a normal token with the text `text` stands for.
  virtual std::string decode(std::string_view text) const = 0;

  /// encode() puts a space in front of what follows a special token.
  virtual bool adds_space() const { return false; }
  /// Name for Tokenizer::pre_tokenizer(); "" where there is none.
  virtual std::string pre_tokenizer() const { return {}; }
};

/// Fills `vocab` and makes the encoder for the file's `tokenizer.ggml.model`. Throws FormatError, UnsupportedError.
std::unique_ptr<const Encoder> load_tokenizer(const GgufFile& file, Vocab& vocab);

/// SentencePiece-style, "llama" (spm.cpp).
std::unique_ptr<const Encoder> load_spm(const GgufFile& file, Vocab& vocab);
/// Byte-level BPE, "gpt2" (bpe.cpp).
std::unique_ptr<const Encoder> load_bpe(const GgufFile& file, Vocab& vocab);

/// The byte that a byte token's text "<0xXX>" names (or a text of one byte is); -1 for another text.
int byte_of_token_text(std::string_view text) noexcept;

}  // namespace powerinfer::tokenizer
