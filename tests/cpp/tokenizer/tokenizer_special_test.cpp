// Special tokens: cut out of the text, hidden in what is decoded, found to end a generation.
#include <algorithm>

#include "test.h"
#include "tokenizer/special_splitter.h"
#include "tokenizer/test_vocab.h"

namespace {

using namespace pi_test;

constexpr powerinfer::EncodeOptions kPlain{.add_special = false};
constexpr powerinfer::EncodeOptions kParse{.add_special = false, .parse_special = true};

TestVocab chat_vocab() {
  TestVocab vocab = bpe_base("gpt-2");
  vocab.add("<|im_start|>", 0, TokenType::kControl);
  vocab.add("<|im_end|>", 0, TokenType::kControl);
  vocab.add("<|user|>", 0, TokenType::kUserDefined);
  return vocab;
}

}  // namespace

TEST(control_tokens_are_parsed_only_when_asked) {
  const Tokenizer tokenizer = chat_vocab().load();
  CHECK_EQ(joined(tokenizer.encode("<|im_start|>A<|im_end|>", kParse)), "256 65 257");
  CHECK_EQ(tokenizer.encode("<|im_start|>A", kPlain).size(), 13U);
  // User-defined ones always are.
  CHECK_EQ(joined(tokenizer.encode("A<|user|>A", kPlain)), "65 258 65");
  CHECK_EQ(joined(tokenizer.encode("A<|user|>A", kParse)), "65 258 65");
  CHECK_EQ(joined(tokenizer.encode("<|user|><|user|>", kPlain)), "258 258");
}

TEST(hidden_in_decoded_text) {
  const Tokenizer tokenizer = chat_vocab().load();
  const std::vector<Token> tokens = {256, 65, 258, 65, 257};
  CHECK_EQ(tokenizer.decode(tokens), "A<|user|>A");
  CHECK_EQ(tokenizer.decode(tokens, true), "<|im_start|>A<|user|>A<|im_end|>");
}

TEST(longer_tokens_win_then_lower_ids_then_earlier_places) {
  TestVocab vocab = bpe_base("gpt-2");
  const Token abc = vocab.add("abc", 0, TokenType::kUserDefined);
  const Token bcde = vocab.add("bcde", 0, TokenType::kUserDefined);
  const Token ef = vocab.add("ef", 0, TokenType::kUserDefined);
  const Token de = vocab.add("de", 0, TokenType::kUserDefined);
  const Token xx = vocab.add("xx", 0, TokenType::kUserDefined);
  const Tokenizer tokenizer = vocab.load();
  const auto check = [&](std::string_view text, const std::vector<Token>& expected) {
    CHECK_EQ(joined(tokenizer.encode(text, kPlain)), joined(expected));
  };
  check("abcde", {'a', bcde});
  check("abcd", {abc, 'd'});
  check("def", {'d', ef});
  check("dedef", {de, 'd', ef});
  check("xxxxx", {xx, xx, 'x'});
  check("abcdef", {'a', bcde, 'f'});
}

TEST(white_space_behind_phi3_tokens_belongs_to_them) {
  for (const bool phi3 : {false, true}) {
    TestVocab vocab = spm_base();
    const Token end = vocab.add("<|end|>", 0, TokenType::kControl);
    vocab.set("add_space_prefix", false);
    vocab.keys.emplace_back("general.name", GgufScalar(std::string(phi3 ? "My Phi-3 mini" : "other")));
    const Tokenizer tokenizer = vocab.load();
    const Token newline = 3 + '\n';
    const Token a = 3 + 'a';
    const std::vector<Token> eaten = {end, a, end};
    const std::vector<Token> kept = {end, newline, newline, a, end, newline};
    CHECK_EQ(joined(tokenizer.encode("<|end|>\n\na<|end|>\n", kParse)), joined(phi3 ? eaten : kept));
    CHECK_EQ(joined(tokenizer.encode("<s>\na", kParse)), joined({1, newline, a}));
  }
}

TEST(end_of_generation_by_id_and_by_text) {
  TestVocab vocab = chat_vocab();
  const Token tool = vocab.add("<|eom_id|>", 0, TokenType::kControl);
  const Token plain_text_end = vocab.add("<|endoftext|>");  // a normal token by type; known to end
  const Token by_id = vocab.add("the end", 0, TokenType::kControl);
  vocab.set("eos_token_id", std::uint32_t{65});
  vocab.set("eot_token_id", static_cast<std::uint32_t>(by_id));
  const Tokenizer tokenizer = vocab.load();
  const std::vector<Token> ends(tokenizer.end_of_generation().begin(), tokenizer.end_of_generation().end());
  CHECK_EQ(joined(ends), joined({65, 257, tool, plain_text_end, by_id}));
  for (const Token token : ends) CHECK(tokenizer.is_end_of_generation(token));
  CHECK(!tokenizer.is_end_of_generation(66));
  CHECK(tokenizer.type(plain_text_end) == TokenType::kControl);
  CHECK_EQ(tokenizer.piece(plain_text_end), "");
}

TEST(texts_that_mean_the_end_only_elsewhere) {
  TestVocab vocab = bpe_base("gpt-2");
  const Token end = vocab.add("<|end|>", 0, TokenType::kControl);
  const Token ret = vocab.add("<|return|>", 0, TokenType::kControl);
  const Token call = vocab.add("<|call|>", 0, TokenType::kControl);
  const Token message = vocab.add("<|message|>", 0, TokenType::kControl);
  const Token separator = vocab.add("<|file_sep|>", 0, TokenType::kControl);
  const Tokenizer tokenizer = vocab.load();
  CHECK(!tokenizer.is_end_of_generation(end));
  CHECK(tokenizer.type(end) == TokenType::kUserDefined);
  CHECK(tokenizer.type(message) == TokenType::kUserDefined);
  for (const Token token : {ret, call, separator}) CHECK(tokenizer.is_end_of_generation(token));
}

TEST(thousands_of_special_tokens_cost_no_more_than_their_lengths) {
  TestVocab vocab = bpe_base("gpt-2");
  for (int i = 0; i < 50'000; ++i) vocab.add("<extra_" + std::to_string(100'000 + i) + ">", 0, TokenType::kUserDefined);
  const Tokenizer tokenizer = vocab.load();
  const std::string text = repeated("some text <extra_100007> and <extra_1 more ", 5'000);
  std::vector<Token> tokens;
  const double taken = seconds([&] { tokens = tokenizer.encode(text, kPlain); });
  CHECK(taken < 10.0);  // a search per token reads 10 GB
  CHECK_EQ(std::count(tokens.begin(), tokens.end(), tokenizer.find("<extra_100007>")), 5'000);
  CHECK(tokenizer.decode(tokens) == text);
}

TEST(special_tokens_of_many_lengths) {
  TestVocab vocab = bpe_base("gpt-2");
  for (std::size_t n = 1; n <= 300; ++n) {
    vocab.add(std::string(n, 'a') + (n == 1 ? "a" : ""), 0, TokenType::kUserDefined);
  }
  const Tokenizer tokenizer = vocab.load();
  std::vector<Token> tokens;
  const double taken = seconds([&] { tokens = tokenizer.encode(std::string(100'000, 'a'), kPlain); });
  CHECK(taken < 10.0);
  CHECK_EQ(tokens.size(), 100'000U / 300 + 1);  // 333 of the longest and the rest of 100
  CHECK(tokenizer.decode(tokens) == std::string(100'000, 'a'));
}

TEST_MAIN()
