// See vocab.h.
#include "tokenizer/vocab.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::tokenizer {

namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";

void check_length(const GgufFile& file, std::string_view key, std::size_t n_found, std::size_t n_vocab) {
  if (n_found >= n_vocab) return;
  throw FormatError(base::text(file.path().string(), ": key '", key, "': expected one value for each of the ", n_vocab,
                               " tokens, got ", n_found, "; re-run the conversion"));
}

std::vector<float> load_scores(const GgufFile& file, std::size_t n_vocab) {
  const GgufValue* value = file.find(kScoresKey);
  if (value == nullptr) return std::vector<float>(n_vocab, 0.0F);
  std::vector<float> scores;
  const auto* array = std::get_if<GgufArray>(value);
  if (array != nullptr && std::holds_alternative<std::vector<std::int32_t>>(*array)) {
    for (const std::int32_t score : std::get<std::vector<std::int32_t>>(*array)) {
      scores.push_back(static_cast<float>(score));
    }
  } else {
    scores = *file.find_floats(kScoresKey);
  }
  check_length(file, kScoresKey, scores.size(), n_vocab);
  scores.resize(n_vocab);
  const auto nan = std::find_if(scores.begin(), scores.end(), [](float score) { return std::isnan(score); });
  if (nan != scores.end()) {
    throw FormatError(base::text(file.path().string(), ": key '", kScoresKey, "': token ", nan - scores.begin(),
                                 " has the score NaN, expected a number; re-run the conversion"));
  }
  return scores;
}

TokenType type_of(std::int32_t value) noexcept {
  const bool known =
      value >= static_cast<std::int32_t>(TokenType::kNormal) && value <= static_cast<std::int32_t>(TokenType::kByte);
  return known ? static_cast<TokenType>(value) : TokenType::kUnused;
}

std::vector<TokenType> load_types(const GgufFile& file, std::size_t n_vocab) {
  const std::optional<std::vector<std::int32_t>> values = file.find_i32s(kTypesKey);
  std::vector<TokenType> types(n_vocab, TokenType::kNormal);
  if (!values) return types;
  check_length(file, kTypesKey, values->size(), n_vocab);
  for (std::size_t i = 0; i < n_vocab; ++i) types[i] = type_of((*values)[i]);
  return types;
}

std::vector<std::string> load_texts(const GgufFile& file) {
  const std::vector<std::string>* texts = file.find_strings(kTokensKey);
  if (texts == nullptr || texts->empty() ||
      texts->size() > static_cast<std::size_t>(std::numeric_limits<Token>::max())) {
    throw FormatError(base::text(file.path().string(), ": key '", kTokensKey,
                                 "': expected the texts of the tokens, got ",
                                 texts == nullptr ? "no such key" : base::text(texts->size(), " entries"),
                                 "; re-run the conversion with the tokenizer"));
  }
  std::vector<std::string> result = *texts;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i].empty()) result[i] = base::text("[EMPTY_", i, "]");
  }
  return result;
}

/// Phi-3's added tokens swallow the white space behind them; the file does not say so, only its name tells.
void apply_phi3_rule(const GgufFile& file, Vocab& vocab) {
  const std::string* name = file.find_string("general.name");
  if (name == nullptr) return;
  std::string lower = *name;
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  if (lower.find("phi-3") == std::string::npos && lower.find("phi3") == std::string::npos) return;
  for (std::size_t i = 0; i < vocab.size(); ++i) {
    const std::string& text = vocab.texts[i];
    const bool special = vocab.is_hidden(static_cast<Token>(i)) || vocab.types[i] == TokenType::kUserDefined;
    vocab.eats_space_behind[i] = special && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
  }
}

void check_added(const GgufFile& file, bool& add, Token token, std::string_view name) {
  if (!add || token != kNoToken) return;
  const std::string key = base::text("tokenizer.ggml.add_", name, "_token");
  if (file.find(key) != nullptr) {
    throw FormatError(base::text(file.path().string(), ": key '", key,
                                 "' is true, but there is no token to add: 'tokenizer.ggml.", name,
                                 "_token_id' is absent or not below the vocabulary's size; correct either key"));
  }
  add = false;
}

}  // namespace

Token Vocab::find(std::string_view text) const {
  const auto found = ids.find(text);
  return found == ids.end() ? kNoToken : found->second;
}

Token special_id(const GgufFile& file, std::string_view key, Token fallback, const Vocab& vocab) {
  const std::optional<std::uint32_t> id = file.find_u32(key);
  if (id && *id < vocab.size()) return static_cast<Token>(*id);
  return fallback >= 0 && static_cast<std::size_t>(fallback) < vocab.size() ? fallback : kNoToken;
}

void load_vocab(const GgufFile& file, const VocabDefaults& defaults, Vocab& vocab) {
  vocab.texts = load_texts(file);
  vocab.scores = load_scores(file, vocab.size());
  vocab.types = load_types(file, vocab.size());
  vocab.eats_space_behind.assign(vocab.size(), false);
  vocab.ids.reserve(vocab.size());
  for (std::size_t i = 0; i < vocab.size(); ++i) {
    vocab.ids[vocab.texts[i]] = static_cast<Token>(i);
    vocab.longest_text = std::max(vocab.longest_text, vocab.texts[i].size());
  }
  vocab.bos = special_id(file, "tokenizer.ggml.bos_token_id", defaults.bos, vocab);
  vocab.eos = special_id(file, "tokenizer.ggml.eos_token_id", defaults.eos, vocab);
  vocab.unknown = special_id(file, "tokenizer.ggml.unknown_token_id", defaults.unknown, vocab);
  vocab.add_bos = file.find_bool("tokenizer.ggml.add_bos_token").value_or(defaults.add_bos);
  vocab.add_eos = file.find_bool("tokenizer.ggml.add_eos_token").value_or(false);
  check_added(file, vocab.add_bos, vocab.bos, "bos");
  check_added(file, vocab.add_eos, vocab.eos, "eos");
  infer_special_ids(file, vocab);
  apply_phi3_rule(file, vocab);
}

}  // namespace powerinfer::tokenizer
