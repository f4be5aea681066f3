// The public Tokenizer and StreamDecoder over a vocabulary, an encoder and the special tokens.
#include "powerinfer/tokenizer.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "powerinfer/error.h"
#include "tokenizer/encoder.h"
#include "tokenizer/special_splitter.h"
#include "tokenizer/unicode.h"

namespace powerinfer {

using tokenizer::SpecialKinds;
using tokenizer::SpecialSplitter;

namespace {

/// Without spaces at the ends, and with one in place of every run.
std::string with_joined_spaces(std::string_view text) {
  std::string joined;
  joined.reserve(text.size());
  for (const char c : text) {
    if (c != ' ' || (!joined.empty() && joined.back() != ' ')) joined += c;
  }
  if (!joined.empty() && joined.back() == ' ') joined.pop_back();
  return joined;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const GgufFile& file)
      : encoder(tokenizer::load_tokenizer(file, vocab)),
        model(*file.find_string("tokenizer.ggml.model")),
        pre_tokenizer(encoder->pre_tokenizer()),
        always_special(vocab, SpecialKinds::kUserDefined),
        all_special(vocab, SpecialKinds::kAll) {}

  /// Index of `token` in the vocabulary's arrays. Throws InvalidArgument.
  std::size_t index(Token token) const {
    if (token >= 0 && static_cast<std::size_t>(token) < vocab.size()) return static_cast<std::size_t>(token);
    throw InvalidArgument(base::text("token id ", token, " is out of range: expected 0 to ", vocab.size() - 1));
  }

  bool leaves_out(Token token, bool special) const { return !special && vocab.is_hidden(token); }

  /// Bytes of a token that is not left out.
  std::string bytes(Token token) const {
    const std::string& text = vocab.texts[index(token)];
    switch (vocab.type(token)) {
      case TokenType::kNormal:
        return encoder->decode(text);
      case TokenType::kByte: {
        const int byte = tokenizer::byte_of_token_text(text);
        return byte < 0 ? text : std::string(1, static_cast<char>(static_cast<unsigned char>(byte)));
      }
      case TokenType::kUnused:
        return {};
      case TokenType::kControl:
      case TokenType::kUnknown:
      case TokenType::kUserDefined:
        break;
    }
    return text;
  }

  /// The space that encode() puts in front of a text sits in the first token; not in one that was cut out before.
  bool may_hold_added_space(Token token) const {
    return encoder->adds_space() && vocab.type(token) == TokenType::kNormal;
  }

  tokenizer::Vocab vocab;
  std::unique_ptr<const tokenizer::Encoder> encoder;  // loading it fills `vocab`
  std::string model;
  std::string pre_tokenizer;
  SpecialSplitter always_special;
  SpecialSplitter all_special;
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::from_gguf(const GgufFile& file) { return Tokenizer(std::make_shared<const Impl>(file)); }

std::vector<Token> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 29;  // symbols are numbered in 32 bits
  if (text.size() > kMaxBytes) {
    throw InvalidArgument(
        base::text("text of ", text.size(), " bytes: expected at most ", kMaxBytes, "; tokenize it in parts"));
  }
  const Impl& impl = *impl_;
  std::string joined;
  if (impl.vocab.joins_spaces) text = joined = with_joined_spaces(text);
  std::vector<Token> tokens;
  if (options.add_special && impl.vocab.add_bos) tokens.push_back(impl.vocab.bos);
  const SpecialSplitter& splitter = options.parse_special ? impl.all_special : impl.always_special;
  auto preceding = tokenizer::Preceding::kSpecial;
  for (const tokenizer::Fragment& fragment : splitter.split(impl.vocab, text)) {
    if (fragment.token != kNoToken) {
      tokens.push_back(fragment.token);
      preceding = tokenizer::Preceding::kSpecial;
    } else {
      impl.encoder->encode(impl.vocab, text.substr(fragment.offset, fragment.length), preceding, tokens);
      preceding = tokenizer::Preceding::kText;
    }
  }
  if (options.add_special && impl.vocab.add_eos) tokens.push_back(impl.vocab.eos);
  return tokens;
}

std::string Tokenizer::decode(std::span<const Token> tokens, bool special) const {
  std::string text;
  bool at_start = true;
  for (const Token token : tokens) {
    impl_->index(token);
    if (impl_->leaves_out(token, special)) continue;
    const std::string bytes = impl_->bytes(token);
    const bool added_space = at_start && impl_->may_hold_added_space(token) && bytes.starts_with(' ');
    text.append(bytes, added_space ? 1 : 0);
    at_start = false;
  }
  return text;
}

std::string Tokenizer::piece(Token token, bool special) const {
  impl_->index(token);
  return impl_->leaves_out(token, special) ? std::string() : impl_->bytes(token);
}

std::int32_t Tokenizer::n_vocab() const { return static_cast<std::int32_t>(impl_->vocab.size()); }
const std::string& Tokenizer::model() const { return impl_->model; }
const std::string& Tokenizer::pre_tokenizer() const { return impl_->pre_tokenizer; }
const std::string& Tokenizer::text(Token token) const { return impl_->vocab.texts[impl_->index(token)]; }
TokenType Tokenizer::type(Token token) const { return impl_->vocab.types[impl_->index(token)]; }
float Tokenizer::score(Token token) const { return impl_->vocab.scores[impl_->index(token)]; }
Token Tokenizer::bos() const { return impl_->vocab.bos; }
Token Tokenizer::eos() const { return impl_->vocab.eos; }
Token Tokenizer::unknown() const { return impl_->vocab.unknown; }
bool Tokenizer::add_bos() const { return impl_->vocab.add_bos; }
bool Tokenizer::add_eos() const { return impl_->vocab.add_eos; }
Token Tokenizer::find(std::string_view text) const { return impl_->vocab.find(text); }

std::span<const Token> Tokenizer::end_of_generation() const { return impl_->vocab.end_of_generation; }

bool Tokenizer::is_end_of_generation(Token token) const {
  return std::ranges::binary_search(impl_->vocab.end_of_generation, token);
}

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool special) : tokenizer_(std::move(tokenizer)), special_(special) {}

std::string StreamDecoder::push(Token token) {
  std::string bytes = tokenizer_.piece(token, special_);
  if (first_ && token == tokenizer_.bos() && bytes.empty()) {
    drops_space_ = true;
  } else if (drops_space_ && !bytes.empty()) {
    bytes = tokenizer_.decode({&token, 1}, special_);
    drops_space_ = false;
  }
  first_ = false;
  pending_ += bytes;
  return tokenizer::take_complete_utf8(pending_);
}

std::string StreamDecoder::finish() {
  std::string rest = tokenizer::take_complete_utf8(pending_);
  if (!pending_.empty()) tokenizer::append_utf8(rest, tokenizer::kReplacementCharacter);
  pending_.clear();
  return rest;
}

}  // namespace powerinfer
