// See pre_tokenizer.h. A new pre-tokenizer is one entry of kPreTokenizers and, where no rule fits, a split rule.
#include "tokenizer/pre_tokenizer.h"

#include <array>
#include <vector>

namespace powerinfer::tokenizer {

namespace {

constexpr std::array kDefaultRules = {split_punctuation, split_words_gpt2, split_number_runs, split_digit_triples};
constexpr std::array kGpt2Rules = {split_words_gpt2};
constexpr std::array kFalconRules = {split_punctuation_and_backtick, split_words_gpt2, split_digit_triples};
constexpr std::array kLlamaBpeRules = {split_words_llama3};
constexpr std::array kSmollmRules = {split_each_number, split_words_gpt2};
constexpr std::array kQwen2Rules = {split_words_qwen2};

constexpr PreTokenizer kPreTokenizers[] = {
    {.name = "default", .rules = kDefaultRules, .whole_words_first = false, .adds_bos = false},
    {.name = "gpt-2", .rules = kGpt2Rules, .whole_words_first = false, .adds_bos = false},
    {.name = "falcon", .rules = kFalconRules, .whole_words_first = false, .adds_bos = false},
    {.name = "llama-bpe", .rules = kLlamaBpeRules, .whole_words_first = true, .adds_bos = true},
    {.name = "smollm", .rules = kSmollmRules, .whole_words_first = false, .adds_bos = false},
    {.name = "qwen2", .rules = kQwen2Rules, .whole_words_first = false, .adds_bos = false},
};

std::vector<std::size_t> apply_rule(SplitRule rule, Chars chars, const std::vector<std::size_t>& pieces) {
  std::vector<std::size_t> words;
  words.reserve(pieces.size());
  std::size_t start = 0;
  for (const std::size_t length : pieces) {
    rule(chars.subspan(start, length), words);
    start += length;
  }
  return words;
}

}  // namespace

const PreTokenizer* find_pre_tokenizer(std::string_view name) noexcept {
  for (const PreTokenizer& entry : kPreTokenizers) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string pre_tokenizer_names() {
  std::string names;
  for (const PreTokenizer& entry : kPreTokenizers) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

void split_text(const PreTokenizer& pre_tokenizer, std::string_view text,
                const std::function<void(std::string_view)>& on_word) {
  std::vector<ClassifiedChar> chars;
  chars.reserve(text.size());
  for (std::size_t offset = 0; offset < text.size();) {
    const char32_t code_point = decode_utf8(text, offset);
    chars.push_back({code_point, char_class(code_point)});
  }
  std::vector<std::size_t> lengths = {chars.size()};
  for (const SplitRule rule : pre_tokenizer.rules) lengths = apply_rule(rule, chars, lengths);

  std::string word;
  std::size_t start = 0;
  for (const std::size_t length : lengths) {
    word.clear();
    for (std::size_t i = start; i < start + length; ++i) append_utf8(word, chars[i].code_point);
    on_word(word);
    start += length;
  }
}

}  // namespace powerinfer::tokenizer
