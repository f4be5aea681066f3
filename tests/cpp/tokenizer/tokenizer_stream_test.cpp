// Incremental detokenizing: whole characters only, whatever the tokens cut.
#include "powerinfer/error.h"
#include "test.h"
#include "tokenizer/test_vocab.h"

namespace {

using namespace pi_test;
using powerinfer::StreamDecoder;

const std::string kReplacement = "\xEF\xBF\xBD";
const std::string kMark = "\xE2\x96\x81";

/// What push() gives for each byte, with "|" between the calls, and finish() at the end.
std::string streamed(const std::string& bytes) {
  StreamDecoder decoder(bpe_base("gpt-2").load());
  std::string out;
  for (const char c : bytes) out += decoder.push(static_cast<unsigned char>(c)) + "|";
  return out + decoder.finish();
}

}  // namespace

TEST(characters_come_out_whole) {
  CHECK_EQ(streamed("a\xC3\xA9z"), "a||\xC3\xA9|z|");
  CHECK_EQ(streamed("\xE4\xB8\xAD"), "||\xE4\xB8\xAD|");
  CHECK_EQ(streamed("\xF0\x9F\x99\x82!"), "|||\xF0\x9F\x99\x82|!|");
}

TEST(bytes_that_cannot_become_a_character_are_replaced_at_once) {
  CHECK_EQ(streamed("\xFFz"), kReplacement + "|z|");
  CHECK_EQ(streamed("\x80"), kReplacement + "|");
  CHECK_EQ(streamed("\xC3z"), "|" + kReplacement + "z|");
  CHECK_EQ(streamed("\xE4\xB8z"), "||" + kReplacement + "z|");
  CHECK_EQ(streamed("\xC0\x80"), kReplacement + "|" + kReplacement + "|");                           // overlong
  CHECK_EQ(streamed("\xED\xA0\x80"), "|" + kReplacement + kReplacement + "|" + kReplacement + "|");  // a surrogate
  CHECK_EQ(streamed("\xF4\x90"), "|" + kReplacement + kReplacement + "|");                           // beyond U+10FFFF
  CHECK_EQ(streamed("\xF0\x9F\xF0\x9F\x99\x82"), "||" + kReplacement + "|||\xF0\x9F\x99\x82|");
}

TEST(an_unfinished_character_is_replaced_at_the_end) {
  CHECK_EQ(streamed("a\xF0\x9F\x99"), "a||||" + kReplacement);
  CHECK_EQ(streamed("\xC3"), "|" + kReplacement);
  CHECK_EQ(streamed(""), "");
}

TEST(finish_leaves_the_decoder_usable) {
  StreamDecoder decoder(bpe_base("gpt-2").load());
  CHECK_EQ(decoder.push(0xC3), "");
  CHECK_EQ(decoder.finish(), kReplacement);
  CHECK_EQ(decoder.push('a'), "a");
  CHECK_EQ(decoder.finish(), "");
}

TEST(a_stream_from_bos_is_a_text_and_any_other_continues_one) {
  TestVocab vocab = spm_base();
  vocab.add("a");
  vocab.add(kMark + "a");
  const Tokenizer tokenizer = vocab.load();
  const Token marked = tokenizer.find(kMark + "a");

  StreamDecoder continued(tokenizer);
  CHECK_EQ(continued.push(marked), " a");
  CHECK_EQ(continued.push(tokenizer.bos()), "");
  CHECK_EQ(continued.push(marked), " a");

  StreamDecoder whole(tokenizer);
  CHECK_EQ(whole.push(tokenizer.bos()), "");
  CHECK_EQ(whole.push(marked), "a");
  CHECK_EQ(whole.push(marked), " a");

  StreamDecoder shown(tokenizer, true);
  CHECK_EQ(shown.push(tokenizer.bos()), "<s>");
  CHECK_EQ(shown.push(marked), " a");
}

TEST(hidden_tokens_do_not_cut_characters) {
  TestVocab vocab = bpe_base("gpt-2");
  const Token control = vocab.add("<|x|>", 0, TokenType::kControl);
  StreamDecoder decoder(vocab.load());
  CHECK_EQ(decoder.push(0xC3), "");
  CHECK_EQ(decoder.push(control), "");
  CHECK_EQ(decoder.push(0xA9), "\xC3\xA9");
  CHECK_THROWS(decoder.push(control + 1), powerinfer::InvalidArgument, "out of range");
}

TEST(pieces_together_equal_decode) {
  const Tokenizer tokenizer = bpe_base("llama-bpe", {"h e", "he l"}).load();
  const std::string text = "hello \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 \xE4\xB8\xAD\xC3\xA9 he";
  StreamDecoder decoder(tokenizer);
  std::string out;
  for (const Token token : tokenizer.encode(text, {.add_special = false})) out += decoder.push(token);
  CHECK_EQ(out + decoder.finish(), text);
}

TEST_MAIN()
