// The generation loop: feed, sample, detokenize, look for a stop. Pull-style, one token per call, so that the caller
// decides about threads, streaming and when to give up.
#include "powerinfer/generate.h"

#include <algorithm>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer {
namespace {

using base::text;

/// Holds text back for as long as it may still become a stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
    for (const std::string& stop : stops_) {
      if (stop.empty()) throw InvalidArgument("generate: an empty stop string would stop at once; leave it out");
    }
  }

  /// Adds text and moves what is safe to show into `out`. True when a stop string was found: `out` then ends before
  /// it.
  bool push(const std::string& added, std::string& out) {
    held_ += added;
    const std::size_t found = first_stop();
    if (found != std::string::npos) {
      out = held_.substr(0, found);
      held_.clear();
      return true;
    }
    const std::size_t safe = held_.size() - longest_beginning();
    out = held_.substr(0, safe);
    held_.erase(0, safe);
    return false;
  }
  std::string take() { return std::exchange(held_, {}); }

 private:
  std::size_t first_stop() const {
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
    return first;
  }
  /// Length of the longest end of the held text that begins a stop string.
  std::size_t longest_beginning() const {
    std::size_t longest = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) longest = n;
      }
    }
    return longest;
  }

  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace

struct Generator::Impl {
  Impl(Context& used_context, Sampler& used_sampler, std::vector<Token> prompt, GenerateOptions&& chosen)
      : context(used_context),
        sampler(used_sampler),
        pending(std::move(prompt)),
        n_before(used_context.n_past()),
        max_tokens(chosen.max_tokens),
        stops(std::move(chosen.stop)) {
    const Model& model = *context.model();
    if (pending.empty()) throw InvalidArgument("generate: the prompt is empty; give at least one token");
    if (max_tokens < -1) {
      throw InvalidArgument(text("generate: max_tokens is ", max_tokens, "; expected a count, or -1 for no limit"));
    }
    for (const auto& [token, bias] : sampler.options().logit_bias) {
      if (token >= 0 && token < model.n_vocab()) continue;
      throw InvalidArgument(text("generate: the sampler has a logit bias for token ", token, "; expected 0 to ",
                                 model.n_vocab() - 1, ", the tokens of this model's vocabulary"));
    }
    if (!model.has_tokenizer()) return;
    tokenizer.emplace(model.tokenizer());
    decoder.emplace(*tokenizer);
    // The text goes on from the prompt: a leading space of the first piece belongs to it.
    decoder->push(pending.back());
    if (chosen.ignore_eos) {
      allowed.assign(static_cast<std::size_t>(model.n_vocab()), 1);
      for (const Token token : tokenizer->end_of_generation()) {
        if (static_cast<std::size_t>(token) < allowed.size()) allowed[static_cast<std::size_t>(token)] = 0;
      }
    }
  }

  /// Evaluates what is pending; after an interruption, what is left of it. Returns the last logits [n_vocab].
  std::span<const float> feed() {
    const int done = context.n_past() - n_before;
    if (!unsampled.empty() && static_cast<std::size_t>(done) == pending.size()) return unsampled;
    if (done < 0 || static_cast<std::size_t>(done) >= pending.size()) {
      throw StateError(text("generate: the context stands at ", context.n_past(), ", not between ", n_before, " and ",
                            n_before + static_cast<int>(pending.size()) - 1,
                            "; it was used otherwise meanwhile, start a new generation"));
    }
    return context.eval(std::span<const Token>(pending).subspan(static_cast<std::size_t>(done)));
  }

  /// Samples from the logits; keeps them if that fails, since there is nothing left to evaluate for the next call.
  Sampled sample(std::span<const float> logits) {
    try {
      const Sampled sampled = sampler.apply(logits, allowed);
      sampler.accept(sampled.token);
      unsampled.clear();
      return sampled;
    } catch (...) {
      if (unsampled.empty()) unsampled.assign(logits.begin(), logits.end());
      throw;
    }
  }

  Piece finish(Piece piece, FinishReason reason) {
    finished = true;
    piece.finish_reason = reason;
    return piece;
  }
  std::string rest() { return stops.take() + (decoder ? decoder->finish() : std::string()); }

  Context& context;
  Sampler& sampler;
  std::vector<Token> pending;  // not (wholly) evaluated yet: the prompt, later the last token
  int n_before;                // positions in the context before `pending`
  int max_tokens;
  StopMatcher stops;
  std::optional<Tokenizer> tokenizer;
  std::optional<StreamDecoder> decoder;
  std::vector<std::uint8_t> allowed;  // [n_vocab]; empty: everything
  std::vector<float> unsampled;       // [n_vocab], the logits that the sampler failed on; empty: none
  int n_generated = 0;
  bool prompt_accepted = false;
  bool finished = false;
};

Generator::Generator(Context& context, Sampler& sampler, std::vector<Token> prompt, GenerateOptions options)
    : impl_(std::make_unique<Impl>(context, sampler, std::move(prompt), std::move(options))) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;

std::optional<Piece> Generator::next() {
  Impl& s = *impl_;
  if (s.finished) return std::nullopt;
  const std::span<const float> logits = s.feed();
  if (!s.prompt_accepted) {
    for (const Token token : s.pending) s.sampler.accept(token);
    s.prompt_accepted = true;
  }
  if (s.max_tokens == 0) return s.finish({}, FinishReason::kLength);

  const Sampled sampled = s.sample(logits);
  Piece piece{.text = {}, .token = sampled.token, .logprob = sampled.logprob};
  s.pending.assign(1, sampled.token);
  s.n_before = s.context.n_past();
  ++s.n_generated;

  if (s.tokenizer && s.tokenizer->is_end_of_generation(sampled.token)) {
    piece.text = s.rest();
    return s.finish(std::move(piece), FinishReason::kStop);
  }
  if (s.decoder && s.stops.push(s.decoder->push(sampled.token), piece.text)) {
    return s.finish(std::move(piece), FinishReason::kStop);
  }
  if (s.n_generated == s.max_tokens || s.n_before >= s.context.n_ctx()) {
    piece.text += s.rest();
    return s.finish(std::move(piece), FinishReason::kLength);
  }
  return piece;
}

}  // namespace powerinfer
