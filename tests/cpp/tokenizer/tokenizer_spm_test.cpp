// SentencePiece-style tokenization: merges by score, byte fallback, the added space, what the file's flags do.
#include <algorithm>

#include "powerinfer/error.h"
#include "test.h"
#include "tokenizer/test_vocab.h"

namespace {

using namespace pi_test;

const std::string kMark = "\xE2\x96\x81";
constexpr powerinfer::EncodeOptions kPlain{.add_special = false};

TestVocab words_vocab() {
  TestVocab vocab = spm_base();
  for (const std::string letter : {"h", "e", "l", "o"}) vocab.add(letter, -10);
  vocab.add(kMark, -10);
  vocab.add("he", -3);
  vocab.add("el", -1);
  vocab.add("ll", -2);
  vocab.add("hel", -4);
  vocab.add("lo", -5);
  vocab.add(kMark + "hel", -6);
  vocab.add(kMark + "h", -7);
  return vocab;
}

}  // namespace

TEST(best_score_merges_first) {
  const Tokenizer tokenizer = words_vocab().load();
  // "el" (-1) first, then "hel" (-4) beats "lo" (-5), then the mark joins: "▁hel"; "lo" is what remains.
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("hello", kPlain)), kMark + "hel|lo");
  // Of two equal pairs the left one merges first.
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("lll", kPlain)), kMark + "|ll|l");
}

TEST(merged_symbols_go_on_merging_although_older_pairs_are_stale) {
  TestVocab vocab = spm_base();
  for (const std::string letter : {"a", "b", "c", "d"}) vocab.add(letter, -10);
  vocab.add("bc", -1);
  vocab.add("ab", -2);  // found first, stale once "bc" exists
  vocab.add("cd", -2);
  vocab.add("abc", -3);
  vocab.add("abcd", -4);
  vocab.set("add_space_prefix", false);
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("abcdab", kPlain)), "abcd|ab");
}

TEST(bytes_stand_in_for_unknown_characters) {
  TestVocab vocab = words_vocab();
  vocab.set("add_space_prefix", false);
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("h\xC3\xA9!", kPlain)), "h|<0xC3>|<0xA9>|<0x21>");
  // Truncated and wrong UTF-8 goes through bytes as well, unchanged.
  for (const std::string text : {"\xE2\x96", "\xFF\xFE", "h\xC3", "\xF0\x9F\x99"}) {
    CHECK_EQ(tokenizer.decode(tokenizer.encode(text, kPlain)), text);
  }
}

TEST(one_unknown_token_for_a_character_without_byte_tokens) {
  TestVocab vocab;
  vocab.add("<unk>", 0, TokenType::kUnknown);
  vocab.add("<s>", 0, TokenType::kControl);
  vocab.add("</s>", 0, TokenType::kControl);
  vocab.add("a");
  vocab.set("add_space_prefix", false);
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(joined(tokenizer.encode("a\xC3\xA9"
                                   "a",
                                   kPlain)),
           "3 0 3");
  CHECK_EQ(tokenizer.decode(std::vector<Token>{3, 0, 3}), "aa");
  CHECK_EQ(tokenizer.decode(std::vector<Token>{3, 0, 3}, true), "a<unk>a");
}

TEST(a_space_is_added_to_what_follows_a_special_token) {
  TestVocab vocab = words_vocab();
  vocab.add("<|cut|>", 0, TokenType::kUserDefined);
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("he<|cut|>he", kPlain)), kMark + "|he|<|cut|>|" + kMark + "|he");
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("<s>he", {.add_special = true, .parse_special = true})),
           "<s>|<s>|" + kMark + "|he");
  CHECK_EQ(joined(tokenizer.encode("", {})), "1");
  CHECK_EQ(joined(tokenizer.encode("", kPlain)), "");

  TestVocab without = words_vocab();
  without.set("add_space_prefix", false);
  const Tokenizer bare = without.load();
  CHECK_EQ(spelled(bare, bare.encode("he", kPlain)), "he");
}

TEST(decode_gives_the_text_back) {
  TestVocab with = words_vocab();
  TestVocab without = words_vocab();
  without.set("add_space_prefix", false);
  for (const TestVocab* vocab : {&with, &without}) {
    const Tokenizer tokenizer = vocab->load();
    for (const std::string text : {"", " ", "hello", " hello", "  hello  he ", "\n\thello", "\xF0\x9F\x99\x82 he"}) {
      CHECK_EQ(tokenizer.decode(tokenizer.encode(text, {})), text);
      CHECK_EQ(tokenizer.decode(tokenizer.encode(text, kPlain)), text);
    }
  }
  const Tokenizer tokenizer = with.load();
  const std::vector<Token> hello = tokenizer.encode("hello", {});
  CHECK_EQ(tokenizer.decode(hello, true), "<s> hello");  // behind a visible token the space stays, as in llama.cpp
  CHECK_EQ(tokenizer.piece(hello[1]), " hel");
  CHECK_EQ(tokenizer.piece(hello[0]), "");
  CHECK_EQ(tokenizer.piece(hello[0], true), "<s>");
}

TEST(flags_of_the_file_decide_about_bos_and_eos) {
  const Tokenizer defaults = words_vocab().load();
  CHECK(defaults.add_bos());
  CHECK(!defaults.add_eos());
  CHECK_EQ(defaults.bos(), 1);
  CHECK_EQ(defaults.eos(), 2);
  CHECK_EQ(defaults.unknown(), 0);
  CHECK_EQ(defaults.model(), "llama");
  CHECK_EQ(defaults.pre_tokenizer(), "");

  TestVocab vocab = words_vocab();
  vocab.set("add_bos_token", false);
  vocab.set("add_eos_token", true);
  vocab.set("eos_token_id", std::uint32_t{7});
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(joined(tokenizer.encode("", {})), "7");
  CHECK_EQ(joined(tokenizer.encode("", kPlain)), "");
}

TEST(entries_can_be_asked_for) {
  const Tokenizer tokenizer = words_vocab().load();
  CHECK_EQ(tokenizer.n_vocab(), 3 + 256 + 12);
  const Token he = tokenizer.find("he");
  CHECK_EQ(tokenizer.text(he), "he");
  CHECK_EQ(tokenizer.score(he), -3.0F);
  CHECK(tokenizer.type(he) == TokenType::kNormal);
  CHECK(tokenizer.type(3) == TokenType::kByte);
  CHECK_EQ(tokenizer.find("no such entry"), powerinfer::kNoToken);
  for (const Token wrong : {-1, tokenizer.n_vocab()}) {
    CHECK_THROWS(tokenizer.text(wrong), powerinfer::InvalidArgument, "out of range");
    CHECK_THROWS(tokenizer.piece(wrong), powerinfer::InvalidArgument, "out of range");
    CHECK_THROWS(tokenizer.decode(std::vector<Token>{he, wrong}), powerinfer::InvalidArgument, std::to_string(wrong));
    CHECK(!tokenizer.is_end_of_generation(wrong));
  }
}

TEST(long_texts_take_no_quadratic_time) {
  TestVocab vocab = words_vocab();
  std::string run = "l";
  for (int i = 0; i < 8; ++i) {
    run += run;
    if (vocab.tokens.end() == std::find(vocab.tokens.begin(), vocab.tokens.end(), run)) vocab.add(run, -20.0F);
  }
  const Tokenizer tokenizer = vocab.load();
  const std::string text = repeated("l", 300'000);
  std::vector<Token> tokens;
  const double taken = seconds([&] { tokens = tokenizer.encode(text, kPlain); });
  CHECK(taken < 20.0);  // a quadratic loop would need minutes
  CHECK(tokens.size() < 2'000);
  CHECK(tokenizer.decode(tokens) == text);
}

TEST_MAIN()
