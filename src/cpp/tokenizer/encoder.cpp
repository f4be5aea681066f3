// The list of tokenizer models; see encoder.h.
#include "tokenizer/encoder.h"

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::tokenizer {

namespace {

struct Model {
  std::string_view name;
  std::unique_ptr<const Encoder> (*load)(const GgufFile& file, Vocab& vocab);
};

constexpr Model kModels[] = {{"llama", load_spm}, {"gpt2", load_bpe}};

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::unique_ptr<const Encoder> load_tokenizer(const GgufFile& file, Vocab& vocab) {
  const std::string* name = file.find_string("tokenizer.ggml.model");
  if (name == nullptr) {
    throw FormatError(base::text(file.path().string(),
                                 ": key 'tokenizer.ggml.model' is missing: the file has no "
                                 "vocabulary; re-run the conversion with the tokenizer"));
  }
  std::string supported;
  for (const Model& model : kModels) {
    if (model.name == *name) return model.load(file, vocab);
    supported += base::text(supported.empty() ? "" : ", ", model.name);
  }
  throw UnsupportedError(base::text(file.path().string(), ": tokenizer model '", base::printable(*name),
                                    "' is not supported; supported are: ", supported));
}

int byte_of_token_text(std::string_view text) noexcept {
  if (text.size() == 1) return static_cast<unsigned char>(text[0]);
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = hex_digit(text[3]);
  const int low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace powerinfer::tokenizer
