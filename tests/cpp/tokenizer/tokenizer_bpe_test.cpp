// Byte-level BPE: merge ranks, byte mapping, whole words first, flags, vocabularies with holes.
#include "test.h"
#include "tokenizer/test_vocab.h"

namespace {

using namespace pi_test;

constexpr powerinfer::EncodeOptions kPlain{.add_special = false};
const std::string kSpace = byte_text(' ');

}  // namespace

TEST(bytes_have_printable_stand_ins) {
  CHECK_EQ(byte_text('A'), "A");
  CHECK_EQ(byte_text(' '), "\xC4\xA0");   // U+0120
  CHECK_EQ(byte_text(0), "\xC4\x80");     // U+0100
  CHECK_EQ(byte_text('\n'), "\xC4\x8A");  // U+010A
  CHECK_EQ(byte_text(0xAD), "\xC5\x83");  // U+0143, the last one
  CHECK_EQ(byte_text(0xE9), "\xC3\xA9");  // itself
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto& mapping = powerinfer::tokenizer::byte_mapping();
    const auto back = mapping.byte(mapping.code_point(static_cast<std::uint8_t>(byte)));
    CHECK(back && *back == byte);
  }
  CHECK(!powerinfer::tokenizer::byte_mapping().byte(U' '));
  CHECK(!powerinfer::tokenizer::byte_mapping().byte(0x144));
}

TEST(lowest_rank_merges_first) {
  const Tokenizer tokenizer = bpe_base("gpt-2", {"b c", "a b", "a bc", "c d", "abc d"}).load();
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("abcd", kPlain)), "abcd");
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("abd", kPlain)), "ab|d");
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("bcd", kPlain)), "bc|d");
  // Words are merged apart: no merge crosses the pre-tokenizer's cut.
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("ab cd", kPlain)), "ab|" + kSpace + "|cd");
}

TEST(leftmost_of_equal_merges_first) {
  const Tokenizer tokenizer = bpe_base("gpt-2", {"a a", "aa a"}).load();
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("aaaaa", kPlain)), "aa|aaa");
}

TEST(the_first_of_two_equal_merges_counts) {
  const Tokenizer tokenizer = bpe_base("gpt-2", {"a b", "b c"}).load();
  TestVocab doubled = bpe_base("gpt-2", {"a b", "b c"});
  doubled.merges->push_back("a b");
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("abc", kPlain)), "ab|c");
  const Tokenizer again = doubled.load();
  CHECK_EQ(spelled(again, again.encode("abc", kPlain)), "ab|c");
}

TEST(whole_words_come_first_only_for_llama_bpe) {
  for (const std::string pre : {"llama-bpe", "qwen2"}) {
    TestVocab vocab = bpe_base(pre, {"a b"});
    vocab.add("abc");  // no merge leads here
    vocab.set("bos_token_id", std::uint32_t{0});
    const Tokenizer tokenizer = vocab.load();
    CHECK_EQ(spelled(tokenizer, tokenizer.encode("abc", kPlain)), pre == "llama-bpe" ? "abc" : "ab|c");
  }
}

TEST(defaults_and_flags) {
  const Tokenizer missing = bpe_base("").load();
  CHECK_EQ(missing.pre_tokenizer(), "default");
  CHECK_EQ(missing.model(), "gpt2");
  CHECK(!missing.add_bos());
  CHECK(!missing.add_eos());
  CHECK_EQ(missing.bos(), 11);  // llama.cpp's default for this model
  CHECK_EQ(missing.eos(), 11);
  CHECK_EQ(missing.unknown(), powerinfer::kNoToken);
  CHECK_EQ(joined(missing.encode("", {})), "");

  TestVocab vocab = bpe_base("llama-bpe");
  vocab.set("bos_token_id", std::uint32_t{5});
  vocab.set("eos_token_id", std::uint32_t{6});
  vocab.set("add_eos_token", true);
  const Tokenizer tokenizer = vocab.load();
  CHECK(tokenizer.add_bos());
  CHECK_EQ(joined(tokenizer.encode("A", {})), "5 65 6");
  CHECK_EQ(joined(tokenizer.encode("A", kPlain)), "65");
}

TEST(invalid_utf8_becomes_the_replacement_character) {
  const Tokenizer tokenizer = bpe_base("gpt-2").load();
  const std::string replacement = "\xEF\xBF\xBD";
  CHECK_EQ(tokenizer.decode(tokenizer.encode("a\xFF"
                                             "b",
                                             kPlain)),
           "a" + replacement + "b");
  CHECK_EQ(tokenizer.decode(tokenizer.encode("\xE2\x82", kPlain)), replacement + replacement);
  CHECK_EQ(tokenizer.decode(tokenizer.encode("\xF7\xBF\xBF\xBF", kPlain)), repeated(replacement, 4));
}

TEST(decode_gives_the_text_back) {
  for (const std::string pre : {"default", "gpt-2", "falcon", "llama-bpe", "smollm", "qwen2"}) {
    const Tokenizer tokenizer = bpe_base(pre, {"h e", "l l", "he ll", kSpace + " he"}).load();
    for (const std::string text : {"", " ", " hello", "he said: \"he'll!\"  \r\n\t 12345",
                                   "\xF0\x9F\x99\x82\xCC\x81 \xE4\xB8\xAD", "it 's . , !"}) {
      CHECK_EQ(tokenizer.decode(tokenizer.encode(text, kPlain)), text);
    }
  }
}

TEST(texts_that_are_no_byte_mapping_are_taken_as_they_are) {
  TestVocab vocab = bpe_base("gpt-2");
  const Token odd = vocab.add("a\xE2\x96\x81z");  // U+2581 stands for no byte
  const Token byte = vocab.add("<0x41>", 0, TokenType::kByte);
  const Token strange = vocab.add("<0xZZ>", 0, TokenType::kByte);
  const Token unused = vocab.add("unused", 0, TokenType::kUnused);
  const Tokenizer tokenizer = vocab.load();
  CHECK_EQ(tokenizer.piece(odd), "a\xE2\x96\x81z");
  CHECK_EQ(tokenizer.piece(byte), "A");
  CHECK_EQ(tokenizer.piece(strange), "<0xZZ>");
  CHECK_EQ(tokenizer.piece(unused), "");
}

TEST(vocabularies_with_holes) {
  TestVocab vocab = bpe_empty({"a b", "b c"});
  vocab.add("a");
  vocab.add("b");
  vocab.add("bc");
  const Tokenizer tokenizer = vocab.load();
  // "ab" merges but is no entry: the entries of its letters remain. "z" and "c" have none: nothing remains.
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("ab", kPlain)), "a|b");
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("abc", kPlain)), "a|b");
  CHECK_EQ(spelled(tokenizer, tokenizer.encode("zbcz", kPlain)), "bc");
}

TEST(long_words_take_no_quadratic_time) {
  std::vector<std::string> merges;
  std::string run = "a";
  for (int i = 0; i < 8; ++i) {
    merges.push_back(run + " " + run);
    run += run;
  }
  for (const std::string pre : {"default", "gpt-2", "falcon", "llama-bpe", "smollm", "qwen2"}) {
    const Tokenizer tokenizer = bpe_base(pre, merges).load();
    for (const std::string unit : {"a", " ", "'", "7", "\n", "\xF0\x9F\x99\x82"}) {
      const std::string text = repeated(unit, 100'000);
      std::vector<Token> tokens;
      const double taken = seconds([&] { tokens = tokenizer.encode(text, kPlain); });
      CHECK(taken < 10.0);  // a quadratic loop would need minutes
      CHECK(tokenizer.decode(tokens) == text);
    }
  }
}

TEST_MAIN()
