// Small vocabularies for tests: built in memory, written with GgufWriter into a temporary file, loaded from there.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "powerinfer/gguf.h"
#include "powerinfer/tokenizer.h"
#include "tokenizer/byte_mapping.h"
#include "tokenizer/unicode.h"

namespace pi_test {

using powerinfer::GgufArray;
using powerinfer::GgufScalar;
using powerinfer::GgufValue;
using powerinfer::Token;
using powerinfer::Tokenizer;
using powerinfer::TokenType;

class TemporaryFile {
 public:
  TemporaryFile() {
    std::random_device random;
    const std::string name = "powerinfer-test-" + std::to_string(random()) + "-" + std::to_string(random()) + ".gguf";
    path_ = std::filesystem::temp_directory_path() / name;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct TestVocab {
  std::string model = "llama";
  std::vector<std::string> tokens;
  std::optional<std::vector<float>> scores;
  std::optional<std::vector<std::int32_t>> types;
  std::optional<std::vector<std::string>> merges;
  std::vector<std::pair<std::string, GgufValue>> keys;  // whatever else the file shall say

  Token add(std::string text, float score = 0.0F, TokenType type = TokenType::kNormal) {
    tokens.push_back(std::move(text));
    if (!scores) scores.emplace();
    if (!types) types.emplace();
    scores->push_back(score);
    types->push_back(static_cast<std::int32_t>(type));
    return static_cast<Token>(tokens.size() - 1);
  }
  void set(std::string key, GgufScalar value) {
    keys.emplace_back("tokenizer.ggml." + key, GgufValue(std::move(value)));
  }

  void write(const std::filesystem::path& path) const {
    powerinfer::GgufWriter writer(powerinfer::GgufWriter::Magic::kGguf);
    writer.add("general.architecture", GgufScalar(std::string("llama")));
    writer.add("tokenizer.ggml.model", GgufScalar(model));
    writer.add("tokenizer.ggml.tokens", GgufArray(tokens));
    if (scores) writer.add("tokenizer.ggml.scores", GgufArray(*scores));
    if (types) writer.add("tokenizer.ggml.token_type", GgufArray(*types));
    if (merges) writer.add("tokenizer.ggml.merges", GgufArray(*merges));
    for (const auto& [key, value] : keys) writer.add(key, value);
    writer.write(path);
  }
  Tokenizer load() const {
    const TemporaryFile file;
    write(file.path());
    return Tokenizer::from_gguf(powerinfer::GgufFile::open(file.path(), powerinfer::FileAccess::kRead));
  }
};

/// <unk> <s> </s>, then the 256 byte tokens: id of a byte = 3 + byte.
inline TestVocab spm_base() {
  TestVocab vocab;
  vocab.add("<unk>", 0, TokenType::kUnknown);
  vocab.add("<s>", 0, TokenType::kControl);
  vocab.add("</s>", 0, TokenType::kControl);
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    vocab.add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", 0, TokenType::kByte);
  }
  return vocab;
}

inline std::string byte_text(unsigned byte) {
  std::string text;
  powerinfer::tokenizer::append_utf8(text,
                                     powerinfer::tokenizer::byte_mapping().code_point(static_cast<std::uint8_t>(byte)));
  return text;
}

inline TestVocab bpe_empty(const std::vector<std::string>& merges) {
  TestVocab vocab;
  vocab.model = "gpt2";
  vocab.merges = merges;
  return vocab;
}

/// The 256 byte tokens, id = byte, and a token for each merge: "a b" gives "ab".
inline TestVocab bpe_base(std::string pre, const std::vector<std::string>& merges = {}) {
  TestVocab vocab = bpe_empty(merges);
  for (unsigned byte = 0; byte < 256; ++byte) vocab.add(byte_text(byte));
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ', 1);
    vocab.add(merge.substr(0, space) + merge.substr(space + 1));
  }
  if (!pre.empty()) vocab.set("pre", std::move(pre));
  return vocab;
}

inline std::string joined(const std::vector<Token>& tokens) {
  std::ostringstream out;
  for (std::size_t i = 0; i < tokens.size(); ++i) out << (i == 0 ? "" : " ") << tokens[i];
  return out.str();
}

/// The texts of the tokens with "|" between them.
inline std::string spelled(const Tokenizer& tokenizer, const std::vector<Token>& tokens) {
  std::string out;
  for (const Token token : tokens) out += (out.empty() ? "" : "|") + tokenizer.text(token);
  return out;
}

inline std::string repeated(std::string_view unit, std::size_t n) {
  std::string text;
  text.reserve(unit.size() * n);
  for (std::size_t i = 0; i < n; ++i) text += unit;
  return text;
}

template <class Function>
double seconds(Function function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace pi_test
