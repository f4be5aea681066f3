// Byte-level BPE as llama.cpp does it: words of the pre-tokenizer, their bytes merged pairwise, lowest rank first.
// Symbols are numbers here, not strings: a merge is a table look-up of two numbers.
#include <array>
#include <limits>
#include <queue>

#include "base/text.h"
#include "powerinfer/error.h"
#include "tokenizer/byte_mapping.h"
#include "tokenizer/encoder.h"
#include "tokenizer/pre_tokenizer.h"

namespace powerinfer::tokenizer {

namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::int32_t kNone = -1;

/// Number of a text that merging can meet; below n_vocab it is the token of that text.
using SymbolId = std::uint32_t;

struct MergeRule {
  std::int32_t rank;
  SymbolId result;
};

std::uint64_t pair_key(SymbolId left, SymbolId right) noexcept {
  return (static_cast<std::uint64_t>(left) << 32) | right;
}

/// Gives numbers to texts, while a vocabulary is loaded.
class SymbolNumbers {
 public:
  explicit SymbolNumbers(const Vocab& vocab) : vocab_(vocab) {}

  SymbolId of(std::string_view text) {
    if (const Token token = vocab_.find(text); token != kNoToken) return static_cast<SymbolId>(token);
    const auto next = static_cast<SymbolId>(vocab_.size() + others_.size());
    return others_.try_emplace(std::string(text), next).first->second;
  }

  /// For each text that is no entry: the entries that its single bytes spell. Other bytes leave nothing behind, and
  /// so do bytes without an entry: llama.cpp's rule for vocabularies with holes.
  std::vector<std::vector<Token>> spelled_others() const {
    std::vector<std::vector<Token>> spelled(others_.size());
    for (const auto& [text, id] : others_) {
      for (const char& c : text) {
        const Token token = vocab_.find({&c, 1});
        if (token != kNoToken) spelled[id - vocab_.size()].push_back(token);
      }
    }
    return spelled;
  }

 private:
  const Vocab& vocab_;
  std::unordered_map<std::string, SymbolId> others_;
};

struct Symbol {
  std::int32_t previous;
  std::int32_t next;
  SymbolId id;
  bool alive;
};

struct Merge {
  std::int32_t rank;
  std::int32_t left;
  std::int32_t right;
  SymbolId left_id;  ///< what stood there when the merge was found; it is stale if that has changed since
  SymbolId right_id;
  SymbolId result;
};

struct LaterThan {
  bool operator()(const Merge& a, const Merge& b) const noexcept {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

using MergeTable = std::unordered_map<std::uint64_t, MergeRule>;

/// The merge loop over one word at a time; keeps its memory between words.
class Merger {
 public:
  explicit Merger(const MergeTable& rules) : rules_(rules) {}

  void begin_word() { symbols_.clear(); }
  void add(SymbolId id) {
    const auto index = static_cast<std::int32_t>(symbols_.size());
    symbols_.push_back({index - 1, index + 1, id, true});
  }

  const std::vector<Symbol>& run() {
    if (!symbols_.empty()) symbols_.back().next = kNone;
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

  void consider(std::int32_t left, std::int32_t right) {
    if (left == kNone || right == kNone) return;
    const auto rule = rules_.find(pair_key(at(left).id, at(right).id));
    if (rule == rules_.end()) return;
    queue_.push({rule->second.rank, left, right, at(left).id, at(right).id, rule->second.result});
  }

  void apply(const Merge& merge) {
    Symbol& left = at(merge.left);
    Symbol& right = at(merge.right);
    if (!left.alive || !right.alive || left.id != merge.left_id || right.id != merge.right_id) return;
    left.id = merge.result;
    left.next = right.next;
    right.alive = false;
    if (right.next != kNone) at(right.next).previous = merge.left;
    consider(left.previous, merge.left);
    consider(merge.left, left.next);
  }

  const MergeTable& rules_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Merge, std::vector<Merge>, LaterThan> queue_;
};

std::string mapped_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(text, byte_mapping().code_point(static_cast<std::uint8_t>(c)));
  return text;
}

class BpeEncoder final : public Encoder {
 public:
  BpeEncoder(const GgufFile& file, const Vocab& vocab, const PreTokenizer& pre_tokenizer)
      : pre_tokenizer_(pre_tokenizer) {
    SymbolNumbers numbers(vocab);
    for (std::size_t byte = 0; byte < byte_symbols_.size(); ++byte) {
      const char c = static_cast<char>(static_cast<unsigned char>(byte));
      byte_symbols_[byte] = numbers.of(mapped_text({&c, 1}));
    }
    load_merges(file, numbers);
    spelled_ = numbers.spelled_others();
  }

  void encode(const Vocab& vocab, std::string_view text, Preceding, std::vector<Token>& out) const override {
    Merger merger(merges_);
    split_text(pre_tokenizer_, text, [&](std::string_view word) {
      if (pre_tokenizer_.whole_words_first) {
        if (const Token token = vocab.find(mapped_text(word)); token != kNoToken) {
          out.push_back(token);
          return;
        }
      }
      merger.begin_word();
      for (const char c : word) merger.add(byte_symbols_[static_cast<unsigned char>(c)]);
      for (const Symbol& symbol : merger.run()) {
        if (symbol.alive) emit(vocab, symbol.id, out);
      }
    });
  }

  std::string decode(std::string_view text) const override {
    std::string bytes;
    bytes.reserve(text.size());
    for (std::size_t offset = 0; offset < text.size();) {
      const std::size_t start = offset;
      const auto byte = byte_mapping().byte(decode_utf8(text, offset));
      if (byte) {
        bytes += static_cast<char>(*byte);
      } else {
        bytes += text.substr(start, offset - start);
      }
    }
    return bytes;
  }

  std::string pre_tokenizer() const override { return std::string(pre_tokenizer_.name); }

 private:
  void load_merges(const GgufFile& file, SymbolNumbers& numbers);

  void emit(const Vocab& vocab, SymbolId id, std::vector<Token>& out) const {
    if (id < vocab.size()) {
      out.push_back(static_cast<Token>(id));
    } else {
      const std::vector<Token>& tokens = spelled_[id - vocab.size()];
      out.insert(out.end(), tokens.begin(), tokens.end());
    }
  }

  const PreTokenizer& pre_tokenizer_;
  std::array<SymbolId, 256> byte_symbols_{};
  MergeTable merges_;
  std::vector<std::vector<Token>> spelled_;  // by symbol number - n_vocab
};

void BpeEncoder::load_merges(const GgufFile& file, SymbolNumbers& numbers) {
  const std::vector<std::string>* lines = file.find_strings(kMergesKey);
  if (lines == nullptr || lines->size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw FormatError(base::text(file.path().string(), ": key '", kMergesKey, "': expected the list of merges, got ",
                                 lines == nullptr ? "no such key" : base::text(lines->size(), " entries"),
                                 "; re-run the conversion with the tokenizer"));
  }
  merges_.reserve(lines->size());
  for (std::size_t i = 0; i < lines->size(); ++i) {
    const std::string_view line = (*lines)[i];
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == line.size()) {
      throw FormatError(base::text(file.path().string(), ": key '", kMergesKey, "': entry ", i,
                                   ": expected two texts with a space between them, got '", base::printable(line),
                                   "'; re-run the conversion with the tokenizer"));
    }
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(space + 1);
    const SymbolId result = numbers.of(std::string(left) + std::string(right));
    merges_.try_emplace(pair_key(numbers.of(left), numbers.of(right)), MergeRule{static_cast<std::int32_t>(i), result});
  }
}

}  // namespace

std::unique_ptr<const Encoder> load_bpe(const GgufFile& file, Vocab& vocab) {
  const std::string* named = file.find_string(kPreKey);
  const std::string name = named == nullptr || named->empty() ? "default" : *named;
  const PreTokenizer* pre_tokenizer = find_pre_tokenizer(name);
  if (pre_tokenizer == nullptr) {
    throw UnsupportedError(base::text(file.path().string(), ": key '", kPreKey, "': pre-tokenizer '",
                                      base::printable(name),
                                      "' is not supported; supported are: ", pre_tokenizer_names()));
  }
  load_vocab(file, {.bos = 11, .eos = 11, .unknown = kNoToken, .add_bos = pre_tokenizer->adds_bos}, vocab);
  return std::make_unique<BpeEncoder>(file, vocab, *pre_tokenizer);
}

}  // namespace powerinfer::tokenizer
