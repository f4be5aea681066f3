// Cuts special tokens that are written out in a text ("<|im_end|>") before the rest is tokenized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/vocab.h"

namespace powerinfer::tokenizer {

/// A part of a text: a special token (token != kNoToken) or what lies between them.
struct Fragment {
  std::size_t offset;
  std::size_t length;
  Token token = kNoToken;
};

/// Which tokens are looked for.
enum class SpecialKinds {
  kUserDefined,  ///< those that are always cut out
  kAll,          ///< control and unknown tokens, too
};

/// Longer tokens win over shorter ones, lower ids over higher ones of the same length, then earlier places win.
/// Time: text length times the number of distinct token lengths, however many tokens there are.
class SpecialSplitter {
 public:
  SpecialSplitter(const Vocab& vocab, SpecialKinds kinds);

  /// Fragments in text order; none is empty. White space that a token eats is in none of them.
  std::vector<Fragment> split(const Vocab& vocab, std::string_view text) const;

 private:
  /// The tokens of one length, by hash of their text.
  struct Group {
    std::size_t length;
    std::uint64_t leading_power;  ///< weight of a window's first byte in the rolling hash
    std::unordered_multimap<std::uint64_t, Token> tokens;
  };
  struct Candidate {
    Token token;
    std::size_t offset;
  };

  static std::vector<Candidate> find_candidates(const Group& group, std::string_view text, const Fragment& fragment);
  static void cut(const Group& group, const Vocab& vocab, std::string_view text, const Fragment& fragment,
                  std::vector<Fragment>& out);

  std::vector<Group> groups_;  // longest first
};

}  // namespace powerinfer::tokenizer
