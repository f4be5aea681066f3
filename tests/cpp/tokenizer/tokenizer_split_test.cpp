// How each pre-tokenizer cuts text into words, and the character classes it asks for.
#include "test.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/test_vocab.h"
#include "tokenizer/unicode.h"

namespace {

using namespace pi_test;
namespace tk = powerinfer::tokenizer;

std::string split(std::string_view pre, std::string_view text) {
  std::string out;
  bool first = true;
  tk::split_text(*tk::find_pre_tokenizer(pre), text, [&](std::string_view word) {
    if (!first) out += '|';
    first = false;
    out += word;
  });
  return out;
}

const std::string kArabicThree = "\xD9\xA3";  // U+0663
const std::string kAcute = "\xCC\x81";        // U+0301, a mark
const std::string kIdeographicSpace = "\xE3\x80\x80";

}  // namespace

TEST(names) {
  CHECK_EQ(tk::pre_tokenizer_names(), "default, gpt-2, falcon, llama-bpe, smollm, qwen2");
  CHECK(tk::find_pre_tokenizer("gpt2") == nullptr);
  CHECK(tk::find_pre_tokenizer("") == nullptr);
}

TEST(gpt2) {
  CHECK_EQ(split("gpt-2", "Hello world"), "Hello| world");
  CHECK_EQ(split("gpt-2", "I'll can't we've I'M x's"), "I|'ll| can|'t| we|'ve| I|'|M| x|'s");
  CHECK_EQ(split("gpt-2", "abc123 456def"), "abc|123| 456|def");
  CHECK_EQ(split("gpt-2", "a  b"), "a| | b");
  CHECK_EQ(split("gpt-2", "a\n\nb \n c  "), "a|\n|\n|b| \n| c|  ");
  CHECK_EQ(split("gpt-2", "what?! ...ok"), "what|?!| ...|ok");
  CHECK_EQ(split("gpt-2", "e" + kAcute + "e"), "e|" + kAcute + "|e");
  CHECK_EQ(split("gpt-2", "a" + kIdeographicSpace + "b"), "a|" + kIdeographicSpace + "|b");
  CHECK_EQ(split("gpt-2", "1" + kArabicThree + "2"), "1" + kArabicThree + "2");
  CHECK_EQ(split("gpt-2", "'"), "'");
  CHECK_EQ(split("gpt-2", "'l"), "'|l");
  CHECK_EQ(split("gpt-2", " '"), " '");
  CHECK_EQ(split("gpt-2", ""), "");
}

TEST(default_rules) {
  CHECK_EQ(split("default", "a, b"), "a|,| b");
  CHECK_EQ(split("default", "it's"), "it|'|s");  // punctuation is cut before contractions are seen
  CHECK_EQ(split("default", "x $5.00"), "x| |$|5|.|00");
  CHECK_EQ(split("default", "a `b`"), "a| `|b|`");  // the backtick is not among the signs of this one
  CHECK_EQ(split("default", "n 1234567"), "n| |123|456|7");
  CHECK_EQ(split("default", "12" + kArabicThree + "345"), "12" + kArabicThree + "|345");
}

TEST(falcon) {
  CHECK_EQ(split("falcon", "a `b`"), "a| |`|b|`");
  CHECK_EQ(split("falcon", "n 1234567"), "n| |123|456|7");
  CHECK_EQ(split("falcon", "n 12"), "n| 12");
  CHECK_EQ(split("falcon", "it's <b>"), "it|'|s| |<|b|>");
}

TEST(llama_bpe) {
  CHECK_EQ(split("llama-bpe", "I'LL can'T"), "I|'LL| can|'T");
  CHECK_EQ(split("llama-bpe", "1234567"), "123|456|7");
  CHECK_EQ(split("llama-bpe", "a 1234"), "a| |123|4");
  CHECK_EQ(split("llama-bpe", "\tfoo (bar"), "\tfoo| (|bar");
  CHECK_EQ(split("llama-bpe", "(bar"), "(bar");
  CHECK_EQ(split("llama-bpe", "\nfoo"), "\n|foo");
  CHECK_EQ(split("llama-bpe", "end.\r\n\r\nNext"), "end|.\r\n\r\n|Next");
  CHECK_EQ(split("llama-bpe", "a \n \n  b"), "a| \n \n| | b");
  CHECK_EQ(split("llama-bpe", "a   "), "a|   ");
  CHECK_EQ(split("llama-bpe", "a "), "a| ");
  CHECK_EQ(split("llama-bpe", "12" + kArabicThree + "4"), "12" + kArabicThree + "|4");
  CHECK_EQ(split("llama-bpe", "\xC5\xBF'\xC5\xBF"), "\xC5\xBF|'\xC5\xBF");  // U+017F is no "s"
}

TEST(smollm) {
  CHECK_EQ(split("smollm", "in 2024 it's"), "in| |2|0|2|4| it|'s");
  CHECK_EQ(split("smollm", "a" + kArabicThree), "a|" + kArabicThree);
}

TEST(qwen2) {
  CHECK_EQ(split("qwen2", "in 2024 IT'S"), "in| |2|0|2|4| IT|'S");
  CHECK_EQ(split("qwen2", "x=1;\n"), "x|=|1|;\n");
}

TEST(words_are_valid_utf8_and_nothing_is_lost) {
  const std::string text = "a\xFF\xC3 \xE4\xB8\xAD\xF0\x9F\x99\x82'\xE2\x82";
  const std::string repaired = "a\xEF\xBF\xBD\xEF\xBF\xBD \xE4\xB8\xAD\xF0\x9F\x99\x82'\xEF\xBF\xBD\xEF\xBF\xBD";
  for (const std::string pre : {"default", "gpt-2", "falcon", "llama-bpe", "smollm", "qwen2"}) {
    std::string all;
    tk::split_text(*tk::find_pre_tokenizer(pre), text, [&](std::string_view word) {
      CHECK(!word.empty());
      all += word;
    });
    CHECK_EQ(all, repaired);
  }
}

TEST(character_classes) {
  using tk::CharClass;
  const std::pair<char32_t, CharClass> expected[] = {
      {U'a', CharClass::kLetter},      {U'Z', CharClass::kLetter},      {U'0', CharClass::kNumber},
      {U' ', CharClass::kWhitespace},  {U'\n', CharClass::kWhitespace}, {0x1F, CharClass::kOther},
      {U'!', CharClass::kPunctuation}, {U'$', CharClass::kOther},       {U'_', CharClass::kPunctuation},
      {0x85, CharClass::kWhitespace},  {0xA0, CharClass::kWhitespace},  {0xBD, CharClass::kNumber},
      {0x301, CharClass::kOther},      {0x4E2D, CharClass::kLetter},    {0x3000, CharClass::kWhitespace},
      {0x200B, CharClass::kOther},     {0x1F642, CharClass::kOther},    {0x2EBF0, CharClass::kLetter},  // since 15.1
      {0x2160, CharClass::kNumber},    {0x10FFFF, CharClass::kOther},   {0xD800, CharClass::kOther},
  };
  for (const auto& [code_point, kind] : expected) CHECK(tk::char_class(code_point) == kind);
}

TEST_MAIN()
