// SentencePiece-style tokenization as llama.cpp does it: characters are merged pairwise, best score first, as long as
// the result is a vocabulary entry; characters that are no entry become byte tokens.
#include <algorithm>
#include <array>
#include <queue>

#include "tokenizer/encoder.h"
#include "tokenizer/unicode.h"

namespace powerinfer::tokenizer {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581 stands for a space
constexpr std::int32_t kNone = -1;

/// A stretch of the text; neighbours are linked, since merging removes some.
struct Symbol {
  std::int32_t previous;
  std::int32_t next;
  std::int32_t offset;
  std::int32_t length;  ///< bytes; 0 once merged into the symbol before it
};

struct Merge {
  float score;
  std::int32_t left;
  std::int32_t right;
  std::int32_t length;  ///< of both when the merge was found; it is stale if they have changed since
};

struct WorseThan {
  bool operator()(const Merge& a, const Merge& b) const noexcept {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  }
};

/// One run of the merge loop over one text.
class Merger {
 public:
  Merger(const Vocab& vocab, std::string_view text) : vocab_(vocab), text_(text) {}

  const std::vector<Symbol>& run() {
    make_symbols();
    for (std::size_t i = 1; i < symbols_.size(); ++i) {
      consider(static_cast<std::int32_t>(i - 1), static_cast<std::int32_t>(i));
    }
    while (!queue_.empty()) {
      const Merge merge = queue_.top();
      queue_.pop();
      apply(merge);
    }
    return symbols_;
  }

 private:
  Symbol& at(std::int32_t i) { return symbols_[static_cast<std::size_t>(i)]; }

  void make_symbols() {
    symbols_.reserve(text_.size());
    for (std::size_t offset = 0; offset < text_.size();) {
      const std::size_t length = std::min(utf8_length(text_[offset]), text_.size() - offset);
      const auto index = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({index - 1, index + 1, static_cast<std::int32_t>(offset), static_cast<std::int32_t>(length)});
      offset += length;
    }
    symbols_.back().next = kNone;
  }

  void consider(std::int32_t left, std::int32_t right) {
    if (left == kNone || right == kNone) return;
    const auto length = static_cast<std::size_t>(at(left).length) + static_cast<std::size_t>(at(right).length);
    if (length > vocab_.longest_text) return;
    const Token token = vocab_.find(text_.substr(static_cast<std::size_t>(at(left).offset), length));
    if (token == kNoToken) return;
    queue_.push({vocab_.scores[static_cast<std::size_t>(token)], left, right, static_cast<std::int32_t>(length)});
  }

  void apply(const Merge& merge) {
    Symbol& left = at(merge.left);
    Symbol& right = at(merge.right);
    if (left.length == 0 || right.length == 0 || left.length + right.length != merge.length) return;
    left.length = merge.length;
    right.length = 0;
    left.next = right.next;
    if (right.next != kNone) at(right.next).previous = merge.left;
    consider(left.previous, merge.left);
    consider(merge.left, left.next);
  }

  const Vocab& vocab_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Merge, std::vector<Merge>, WorseThan> queue_;
};

class SpmEncoder final : public Encoder {
 public:
  SpmEncoder(const Vocab& vocab, bool adds_space) : adds_space_(adds_space) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
      const std::string named = std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
      Token token = vocab.find(named);
      if (token == kNoToken) token = vocab.find(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))));
      byte_tokens_[byte] = token;
    }
  }

  void encode(const Vocab& vocab, std::string_view text, Preceding preceding, std::vector<Token>& out) const override {
    std::string marked;
    marked.reserve(text.size() + text.size() / 4);
    if (adds_space_ && preceding == Preceding::kSpecial) marked += kSpaceMark;
    for (const char c : text) {
      if (c == ' ') {
        marked += kSpaceMark;
      } else {
        marked += c;
      }
    }
    Merger merger(vocab, marked);
    for (const Symbol& symbol : merger.run()) {
      if (symbol.length == 0) continue;
      emit(vocab,
           std::string_view(marked).substr(static_cast<std::size_t>(symbol.offset),
                                           static_cast<std::size_t>(symbol.length)),
           out);
    }
  }

  std::string decode(std::string_view text) const override {
    std::string bytes;
    bytes.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
      if (text.substr(i, kSpaceMark.size()) == kSpaceMark) {
        bytes += ' ';
        i += kSpaceMark.size();
      } else {
        bytes += text[i++];
      }
    }
    return bytes;
  }

  bool adds_space() const override { return adds_space_; }

 private:
  /// The symbol's token, else its bytes', else (a vocabulary without all bytes) one unknown-token.
  void emit(const Vocab& vocab, std::string_view symbol, std::vector<Token>& out) const {
    if (const Token token = vocab.find(symbol); token != kNoToken) {
      out.push_back(token);
      return;
    }
    const std::size_t n_before = out.size();
    for (const char c : symbol) {
      const Token token = byte_tokens_[static_cast<unsigned char>(c)];
      if (token == kNoToken) {
        out.resize(n_before);
        if (vocab.unknown != kNoToken) out.push_back(vocab.unknown);
        return;
      }
      out.push_back(token);
    }
  }

  std::array<Token, 256> byte_tokens_{};
  bool adds_space_;
};

}  // namespace

std::unique_ptr<const Encoder> load_spm(const GgufFile& file, Vocab& vocab) {
  load_vocab(file, {.bos = 1, .eos = 2, .unknown = 0, .add_bos = true}, vocab);
  vocab.joins_spaces = file.find_bool("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  const bool adds_space = file.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
  return std::make_unique<SpmEncoder>(vocab, adds_space);
}

}  // namespace powerinfer::tokenizer
