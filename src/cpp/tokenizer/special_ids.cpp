// Which tokens end a generation. Files name few of them by id; the rest is known by text. The texts and the order of
// the corrections follow llama.cpp, so that both stop at the same tokens and hide the same ones.
#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "tokenizer/vocab.h"

namespace powerinfer::tokenizer {

namespace {

using Texts = std::span<const std::string_view>;

constexpr std::string_view kTurnEnd[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",         "<|endoftext|>",     "<|end_of_text|>",
    "<EOT>",      "_<EOT>",     "[EOT]",   "<｜end▁of▁sentence｜>", "<end_of_utterance>"};
constexpr std::string_view kMessageEnd[] = {"<|eom_id|>"};
constexpr std::string_view kFimPrefix[] = {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",    "<｜fim▁begin｜>",
                                           "<PRE>",          "▁<PRE>",       "<|code_prefix|>", "<|prefix|>"};
constexpr std::string_view kFimSuffix[] = {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",    "<｜fim▁hole｜>",
                                           "<SUF>",          "▁<SUF>",       "<|code_suffix|>", "<|suffix|>"};
constexpr std::string_view kFimMiddle[] = {"<|fim_middle|>", "<fim-middle>", "<fim_middle>",    "<｜fim▁end｜>",
                                           "<MID>",          "▁<MID>",       "<|code_middle|>", "<|middle|>"};
constexpr std::string_view kFimPadding[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr std::string_view kFimRepository[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"};
constexpr std::string_view kFimSeparator[] = {"<|file_sep|>"};

constexpr std::string_view kEndOfGeneration[] = {"<|eot_id|>",
                                                 "<|im_end|>",
                                                 "<|end|>",
                                                 "<|return|>",
                                                 "<|call|>",
                                                 "<|flush|>",
                                                 "<|calls|>",
                                                 "<end_of_turn>",
                                                 "<|endoftext|>",
                                                 "</s>",
                                                 "<|eom_id|>",
                                                 "<EOT>",
                                                 "_<EOT>",
                                                 "[EOT]",
                                                 "[EOS]",
                                                 "<|end_of_text|>",
                                                 "<end_of_utterance>",
                                                 "<eos>",
                                                 "<turn|>",
                                                 "<|tool_response>",
                                                 "<｜end▁of▁sentence｜>",
                                                 "[e~["};

/// Markers inside a message: shown, although their files call them control tokens.
constexpr std::string_view kAlwaysShown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

/// A purpose that a file names by id or not at all; then the first known text of the vocabulary has it.
struct Role {
  std::string_view key;
  std::string_view old_key;  ///< replaced by `key`; "" for none
  Texts texts;
  bool ends_generation;
};

constexpr Role kRoles[] = {
    {"tokenizer.ggml.eot_token_id", "", kTurnEnd, true},
    {"tokenizer.ggml.eom_token_id", "", kMessageEnd, true},
    {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id", kFimPrefix, false},
    {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id", kFimSuffix, false},
    {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id", kFimMiddle, false},
    {"tokenizer.ggml.fim_pad_token_id", "", kFimPadding, true},
    {"tokenizer.ggml.fim_rep_token_id", "", kFimRepository, true},
    {"tokenizer.ggml.fim_sep_token_id", "", kFimSeparator, true},
};

void set_type(Vocab& vocab, Token token, TokenType type) { vocab.types[static_cast<std::size_t>(token)] = type; }

/// The token is special whatever the file says; an unknown-token stays what it is, it is as hidden as control.
void make_control(Vocab& vocab, Token token) {
  if (vocab.type(token) != TokenType::kUnknown) set_type(vocab, token, TokenType::kControl);
}

Token find_role(const GgufFile& file, Vocab& vocab, const Role& role) {
  Token token = special_id(file, role.key, kNoToken, vocab);
  if (!role.old_key.empty()) token = special_id(file, role.old_key, token, vocab);
  if (token != kNoToken) return token;
  for (const std::string_view text : role.texts) {
    token = vocab.find(text);
    if (token == kNoToken) continue;
    make_control(vocab, token);
    return token;
  }
  return kNoToken;
}

bool ends_with(const std::set<Token>& ends, const Vocab& vocab, std::string_view text) {
  const Token token = vocab.find(text);
  return token != kNoToken && ends.contains(token);
}

/// Texts that mean the end in one family of models and something else beside certain others.
void drop_contradicted(Vocab& vocab, std::set<Token>& ends) {
  const auto has = [&](std::string_view text) { return ends_with(ends, vocab, text); };
  const bool has_call = has("<|call|>") || has("<|calls|>");
  if (has("<|end|>") && has_call && (has("<|return|>") || has("<|flush|>"))) {
    const Token end = vocab.find("<|end|>");
    ends.erase(end);
    set_type(vocab, end, TokenType::kUserDefined);
  }
  if (has("</s>") && (has("<|tool_response>") || has("<|plamo:eos|>"))) {
    const Token end = vocab.find("</s>");
    ends.erase(end);
    set_type(vocab, end, TokenType::kNormal);
  }
}

}  // namespace

void infer_special_ids(const GgufFile& file, Vocab& vocab) {
  std::set<Token> ends;
  for (const Role& role : kRoles) {
    const Token token = find_role(file, vocab, role);
    if (role.ends_generation) ends.insert(token);
  }
  for (const std::string_view text : kEndOfGeneration) {
    const Token token = vocab.find(text);
    ends.insert(token);
    if (token != kNoToken) make_control(vocab, token);
  }
  for (const std::string_view text : kAlwaysShown) {
    if (const Token token = vocab.find(text); token != kNoToken) set_type(vocab, token, TokenType::kUserDefined);
  }
  ends.insert(vocab.eos);
  ends.erase(kNoToken);
  drop_contradicted(vocab, ends);
  vocab.end_of_generation.assign(ends.begin(), ends.end());
}

}  // namespace powerinfer::tokenizer
