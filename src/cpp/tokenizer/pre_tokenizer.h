// The pre-tokenizers of byte-level BPE vocabularies, by the name in `tokenizer.ggml.pre`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tokenizer/split_rules.h"

namespace powerinfer::tokenizer {

struct PreTokenizer {
  std::string_view name;
  std::span<const SplitRule> rules;
  bool whole_words_first;  ///< a word that is a vocabulary entry is that token, whatever the merges say
  bool adds_bos;           ///< default of tokenizer.ggml.add_bos_token
};

/// Null for an unknown name.
const PreTokenizer* find_pre_tokenizer(std::string_view name) noexcept;
/// "default, gpt-2, ..." for messages.
std::string pre_tokenizer_names();

/// Calls `on_word` with the UTF-8 of each word of `text`, in order. Bytes that are no UTF-8 arrive as U+FFFD.
void split_text(const PreTokenizer& pre_tokenizer, std::string_view text,
                const std::function<void(std::string_view)>& on_word);

}  // namespace powerinfer::tokenizer
