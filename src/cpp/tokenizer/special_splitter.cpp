// See special_splitter.h. A window of each token length runs over the text with a rolling hash, so that a vocabulary
// of thousands of special tokens costs no more than their distinct lengths.
#include "tokenizer/special_splitter.h"

#include <algorithm>
#include <functional>
#include <map>

namespace powerinfer::tokenizer {

namespace {

constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15U;  // odd, bits well mixed: 2^64 / golden ratio

std::uint64_t byte_value(char c) noexcept { return static_cast<std::uint64_t>(static_cast<unsigned char>(c)) + 1; }

std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t hash = 0;
  for (const char c : text) hash = hash * kBase + byte_value(c);
  return hash;
}

bool is_ascii_space(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

SpecialSplitter::SpecialSplitter(const Vocab& vocab, SpecialKinds kinds) {
  std::map<std::size_t, std::vector<Token>, std::greater<>> by_length;
  for (std::size_t i = 0; i < vocab.size(); ++i) {
    const auto token = static_cast<Token>(i);
    const bool wanted =
        vocab.types[i] == TokenType::kUserDefined || (kinds == SpecialKinds::kAll && vocab.is_hidden(token));
    if (wanted && vocab.find(vocab.texts[i]) == token) by_length[vocab.texts[i].size()].push_back(token);
  }
  for (const auto& [length, tokens] : by_length) {
    Group group{.length = length, .leading_power = 1, .tokens = {}};
    for (std::size_t i = 1; i < length; ++i) group.leading_power *= kBase;
    for (const Token token : tokens) group.tokens.emplace(hash_of(vocab.texts[static_cast<std::size_t>(token)]), token);
    groups_.push_back(std::move(group));
  }
}

std::vector<SpecialSplitter::Candidate> SpecialSplitter::find_candidates(const Group& group, std::string_view text,
                                                                         const Fragment& fragment) {
  std::vector<Candidate> candidates;
  if (fragment.length < group.length) return candidates;
  const std::size_t last = fragment.offset + fragment.length - group.length;
  std::uint64_t hash = hash_of(text.substr(fragment.offset, group.length));
  for (std::size_t offset = fragment.offset;; ++offset) {
    const auto [first, end] = group.tokens.equal_range(hash);
    for (auto it = first; it != end; ++it) candidates.push_back({it->second, offset});
    if (offset == last) return candidates;
    hash = (hash - byte_value(text[offset]) * group.leading_power) * kBase + byte_value(text[offset + group.length]);
  }
}

void SpecialSplitter::cut(const Group& group, const Vocab& vocab, std::string_view text, const Fragment& fragment,
                          std::vector<Fragment>& out) {
  std::vector<Candidate> candidates = find_candidates(group, text, fragment);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.token != b.token ? a.token < b.token : a.offset < b.offset;
  });
  const std::size_t end = fragment.offset + fragment.length;
  std::vector<bool> taken(candidates.empty() ? 0 : fragment.length, false);
  const auto is_taken = [&](std::size_t offset) -> bool { return taken[offset - fragment.offset]; };
  std::vector<Fragment> cuts;  // with the white space a token eats
  for (const Candidate& candidate : candidates) {
    // Everything taken is at least as long as the window, so an overlap shows at one of its ends.
    if (is_taken(candidate.offset) || is_taken(candidate.offset + group.length - 1)) continue;
    const auto id = static_cast<std::size_t>(candidate.token);
    if (text.substr(candidate.offset, group.length) != vocab.texts[id]) continue;
    std::size_t stop = candidate.offset + group.length;
    if (vocab.eats_space_behind[id]) {
      while (stop < end && !is_taken(stop) && is_ascii_space(text[stop])) ++stop;
    }
    for (std::size_t i = candidate.offset; i < stop; ++i) taken[i - fragment.offset] = true;
    cuts.push_back({candidate.offset, stop - candidate.offset, candidate.token});
  }
  std::sort(cuts.begin(), cuts.end(), [](const Fragment& a, const Fragment& b) { return a.offset < b.offset; });

  std::size_t position = fragment.offset;
  for (const Fragment& special : cuts) {
    if (special.offset > position) out.push_back({position, special.offset - position});
    out.push_back(special);
    position = special.offset + special.length;
  }
  if (position < end) out.push_back({position, end - position});
}

std::vector<Fragment> SpecialSplitter::split(const Vocab& vocab, std::string_view text) const {
  std::vector<Fragment> fragments;
  if (!text.empty()) fragments.push_back({0, text.size()});
  for (const Group& group : groups_) {
    std::vector<Fragment> next;
    next.reserve(fragments.size());
    for (const Fragment& fragment : fragments) {
      if (fragment.token == kNoToken) {
        cut(group, vocab, text, fragment, next);
      } else {
        next.push_back(fragment);
      }
    }
    fragments = std::move(next);
  }
  return fragments;
}

}  // namespace powerinfer::tokenizer
