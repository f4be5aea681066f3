// Vocabularies that are wrong or malicious: a typed error that names the key, or sane behaviour; never a crash.
#include <limits>

#include "powerinfer/error.h"
#include "test.h"
#include "tokenizer/test_vocab.h"

namespace {

using namespace pi_test;
using powerinfer::FormatError;
using powerinfer::UnsupportedError;

/// Everything a caller can ask for; must not crash on any vocabulary that loads.
void exercise(const Tokenizer& tokenizer) {
  for (const std::string text : {"", " ", "a", "hello world", "\xFF\x00\xC3", "<s></s><|im_end|>", "12 'll \n"}) {
    for (const bool parse : {false, true}) {
      const std::vector<Token> tokens = tokenizer.encode(text, {.add_special = true, .parse_special = parse});
      for (const Token token : tokens) CHECK(token >= 0 && token < tokenizer.n_vocab());
      (void)tokenizer.decode(tokens, parse);
    }
  }
  for (Token token = 0; token < tokenizer.n_vocab(); ++token) (void)tokenizer.piece(token, true);
}

}  // namespace

TEST(other_models_and_pre_tokenizers_are_refused_by_name) {
  for (const std::string model : {"bert", "t5", "rwkv", "none", ""}) {
    TestVocab vocab = spm_base();
    vocab.model = model;
    CHECK_THROWS(vocab.load(), UnsupportedError, "'" + model + "' is not supported; supported are: llama, gpt2");
  }
  CHECK_THROWS(bpe_base("deepseek-llm").load(), UnsupportedError,
               "'deepseek-llm' is not supported; supported are: default, gpt-2, falcon, llama-bpe, smollm, qwen2");
}

TEST(missing_parts) {
  const TemporaryFile file;
  powerinfer::GgufWriter writer(powerinfer::GgufWriter::Magic::kGguf);
  writer.add("general.architecture", GgufScalar(std::string("llama")));
  writer.write(file.path());
  CHECK_THROWS(Tokenizer::from_gguf(powerinfer::GgufFile::open(file.path(), powerinfer::FileAccess::kRead)),
               FormatError, "tokenizer.ggml.model");
  CHECK_THROWS(TestVocab{}.load(), FormatError, "tokenizer.ggml.tokens");
  TestVocab no_merges = bpe_base("gpt-2");
  no_merges.merges.reset();
  CHECK_THROWS(no_merges.load(), FormatError, "tokenizer.ggml.merges");
}

TEST(scores_and_types_of_the_wrong_length_or_kind) {
  TestVocab vocab = spm_base();
  vocab.scores->pop_back();
  CHECK_THROWS(vocab.load(), FormatError, "tokenizer.ggml.scores");
  vocab = spm_base();
  vocab.types->resize(1);
  CHECK_THROWS(vocab.load(), FormatError, "tokenizer.ggml.token_type");
  vocab = spm_base();
  (*vocab.scores)[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS(vocab.load(), FormatError, "token 5 has the score NaN");
  vocab = spm_base();
  vocab.types.reset();
  vocab.keys.emplace_back("tokenizer.ggml.token_type", GgufArray(std::vector<float>(vocab.tokens.size(), 1.0F)));
  CHECK_THROWS(vocab.load(), FormatError, "tokenizer.ggml.token_type");
  vocab = spm_base();
  vocab.scores.reset();
  vocab.types.reset();
  exercise(vocab.load());
  vocab.keys.emplace_back("tokenizer.ggml.scores", GgufArray(std::vector<std::int32_t>(vocab.tokens.size(), -2)));
  CHECK_EQ(vocab.load().score(7), -2.0F);
}

TEST(odd_scores_and_types_are_harmless) {
  TestVocab vocab = spm_base();
  const float infinity = std::numeric_limits<float>::infinity();
  vocab.add("h", infinity);
  vocab.add("he", -infinity);
  vocab.add("el", infinity);
  for (std::size_t i = 10; i < 40; ++i) (*vocab.types)[i] = static_cast<std::int32_t>(i) * 50'000'000;
  (*vocab.types)[50] = -1;
  (*vocab.types)[51] = 0;
  const Tokenizer tokenizer = vocab.load();
  CHECK(tokenizer.type(51) == TokenType::kUnused);
  exercise(tokenizer);
}

TEST(ids_out_of_range_fall_back_as_in_llama_cpp) {
  TestVocab vocab = spm_base();
  for (const std::string key :
       {"bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id", "fim_pad_token_id"}) {
    vocab.set(key, std::uint32_t{0xFFFFFFFF});
  }
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(tokenizer.bos(), 1);
  CHECK_EQ(tokenizer.eos(), 2);
  CHECK_EQ(tokenizer.unknown(), 0);
  exercise(tokenizer);
  vocab = spm_base();
  vocab.set("bos_token_id", std::int32_t{-1});
  CHECK_THROWS(vocab.load(), FormatError, "tokenizer.ggml.bos_token_id");
  vocab = spm_base();
  vocab.set("eos_token_id", std::string("two"));
  CHECK_THROWS(vocab.load(), FormatError, "tokenizer.ggml.eos_token_id");
}

TEST(tokens_to_add_that_do_not_exist) {
  TestVocab tiny;
  tiny.add("a");
  const Tokenizer tokenizer = tiny.load();
  CHECK_EQ(tokenizer.bos(), powerinfer::kNoToken);
  CHECK(!tokenizer.add_bos());
  exercise(tokenizer);
  tiny.set("add_bos_token", true);
  CHECK_THROWS(tiny.load(), FormatError, "tokenizer.ggml.add_bos_token");
}

TEST(malformed_merges) {
  for (const std::string line : {"", " ", "ab", "ab ", " ab", "  "}) {
    TestVocab vocab = bpe_base("gpt-2", {"a b"});
    vocab.merges->push_back(line);
    CHECK_THROWS(vocab.load(), FormatError, "entry 1");
  }
  TestVocab vocab = bpe_base("gpt-2", {"a b"});
  vocab.merges = {"a b c", "zz yy", "\xFF \xFE", "a b", "ab ab"};
  exercise(vocab.load());
}

TEST(duplicate_empty_and_binary_texts) {
  TestVocab vocab = spm_base();
  vocab.add("a", -1);
  const Token last = vocab.add("a", -2);
  const Token empty = vocab.add("", 0, TokenType::kUserDefined);
  vocab.add(std::string("\0x", 2), 0, TokenType::kUserDefined);
  vocab.add("\xFF\xC3", 0, TokenType::kNormal);
  vocab.add("<0x4>", 0, TokenType::kByte);
  vocab.set("add_space_prefix", false);
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(joined(tokenizer.encode("a", {.add_special = false})), joined({last}));
  CHECK_EQ(tokenizer.text(empty), "[EMPTY_" + std::to_string(empty) + "]");
  exercise(tokenizer);
  TestVocab bpe = bpe_base("gpt-2", {"a b"});
  bpe.add("ab");
  bpe.add("");
  bpe.add(std::string("\0", 1));
  exercise(bpe.load());
}

TEST(one_token_is_a_vocabulary) {
  TestVocab spm;
  spm.add("x", 0, TokenType::kControl);
  exercise(spm.load());
  TestVocab bpe = bpe_empty({});
  bpe.add("x");
  exercise(bpe.load());
}

TEST(long_entries_do_not_slow_texts_down) {
  TestVocab vocab = spm_base();
  vocab.add("a", -1);
  for (std::size_t n = 2; n <= 1'500; ++n) vocab.add(std::string(n, 'a'), -static_cast<float>(n));
  vocab.add(std::string(1'000'000, 'a'), 1);
  vocab.set("add_space_prefix", false);
  const Tokenizer tokenizer = vocab.load();
  std::vector<Token> tokens;
  const double taken = seconds([&] { tokens = tokenizer.encode(std::string(100'000, 'a'), {}); });
  CHECK(taken < 20.0);
  CHECK_EQ(tokenizer.decode(tokens).size(), 100'000U);
}

TEST_MAIN()
