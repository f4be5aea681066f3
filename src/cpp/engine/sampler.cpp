// The sampler chain. Steps work on a list of candidates (token, logit) that shrinks on the way; ties are broken by
// the lower id, and the random numbers come from an own generator, so that a seed means the same text everywhere.
#include "powerinfer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer {
namespace {

using base::text;

constexpr std::uint32_t kRandomSeed = 0xFFFFFFFF;

struct Candidate {
  Token token;
  float logit;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

/// SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state, the same numbers on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// In [0, 1), 53 random bits.
  double uniform() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1.0p-53;
  }

 private:
  std::uint64_t state_;
};

void require(bool condition, const char* name, float value, const char* expected) {
  if (!condition) throw InvalidArgument(text("sampler: ", name, " is ", value, "; expected ", expected));
}

void validate(const SamplerOptions& o) {
  require(std::isfinite(o.temperature), "temperature", o.temperature, "a finite number (<= 0 is greedy)");
  require(o.top_p >= 0.0F && o.top_p <= 1.0F, "top_p", o.top_p, "0 to 1 (1 is off)");
  require(o.min_p >= 0.0F && o.min_p <= 1.0F, "min_p", o.min_p, "0 to 1 (0 is off)");
  require(std::isfinite(o.repeat_penalty) && o.repeat_penalty > 0.0F, "repeat_penalty", o.repeat_penalty,
          "a finite number above 0 (1 is off)");
  require(std::isfinite(o.frequency_penalty), "frequency_penalty", o.frequency_penalty, "a finite number");
  require(std::isfinite(o.presence_penalty), "presence_penalty", o.presence_penalty, "a finite number");
  require(o.repeat_last_n >= -1, "repeat_last_n", static_cast<float>(o.repeat_last_n), "-1 (all), 0 (off) or a count");
  for (const auto& [token, bias] : o.logit_bias) {
    if (std::isnan(bias)) throw InvalidArgument(text("sampler: the logit bias of token ", token, " is NaN"));
  }
}

/// Log of the sum of exp over the finite logits.
double log_sum_exp(std::span<const float> logits, float maximum) {
  double sum = 0.0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(std::min(logit, std::numeric_limits<float>::max()) - maximum);
  }
  return static_cast<double>(maximum) + std::log(sum);
}

}  // namespace

struct Sampler::Impl {
  explicit Impl(const SamplerOptions& chosen)
      : options(chosen), seed(chosen.seed == kRandomSeed ? std::random_device{}() : chosen.seed), random(seed) {}

  bool has_penalties() const {
    return options.repeat_last_n != 0 &&
           (options.repeat_penalty != 1.0F || options.frequency_penalty != 0.0F || options.presence_penalty != 0.0F);
  }

  void gather(std::span<const float> logits, std::span<const std::uint8_t> mask);
  void add_bias(std::size_t n_vocab);
  void penalize();
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  Token draw();

  SamplerOptions options;
  std::uint32_t seed;
  Random random;
  std::vector<Token> history;  // the last repeat_last_n accepted tokens (all of them for -1), as a ring
  std::size_t ring_next = 0;

  // Scratch of apply(), kept so that sampling allocates only once.
  std::vector<float> modified;        // [n_vocab], -inf where forbidden
  std::vector<Candidate> candidates;  // those still in play
  std::vector<Token> window;          // history, sorted
};

void Sampler::Impl::gather(std::span<const float> logits, std::span<const std::uint8_t> mask) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  modified.assign(logits.begin(), logits.end());
  for (std::size_t i = 0; i < modified.size(); ++i) {
    if (std::isnan(modified[i]) || (!mask.empty() && mask[i] == 0)) modified[i] = kForbidden;
  }
  add_bias(logits.size());
  if (has_penalties()) penalize();
  candidates.clear();
  for (std::size_t i = 0; i < modified.size(); ++i) {
    if (modified[i] == kForbidden) continue;
    candidates.push_back({static_cast<Token>(i), std::min(modified[i], std::numeric_limits<float>::max())});
  }
}

void Sampler::Impl::add_bias(std::size_t n_vocab) {
  for (const auto& [token, bias] : options.logit_bias) {
    if (token < 0 || static_cast<std::size_t>(token) >= n_vocab) {
      throw InvalidArgument(text("sampler: logit bias for token ", token, "; the vocabulary has ", n_vocab, " tokens"));
    }
    float& logit = modified[static_cast<std::size_t>(token)];
    if (std::isinf(logit)) continue;  // what is certain or forbidden stays so, and inf - inf would be no number
    logit += bias;
  }
}

void Sampler::Impl::penalize() {
  window.assign(history.begin(), history.end());
  std::sort(window.begin(), window.end());
  for (std::size_t begin = 0, end = 0; begin < window.size(); begin = end) {
    while (end < window.size() && window[end] == window[begin]) ++end;
    if (static_cast<std::size_t>(window[begin]) >= modified.size()) continue;
    float& logit = modified[static_cast<std::size_t>(window[begin])];
    // Dividing a negative logit would reward the repetition.
    logit = logit <= 0.0F ? logit * options.repeat_penalty : logit / options.repeat_penalty;
    logit -= static_cast<float>(end - begin) * options.frequency_penalty + options.presence_penalty;
  }
}

void Sampler::Impl::keep_top_k() {
  const std::size_t k = options.top_k <= 0
                            ? candidates.size()
                            : std::min<std::size_t>(static_cast<std::size_t>(options.top_k), candidates.size());
  if (k == candidates.size()) return;
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end(), better);
  candidates.resize(k);
}

/// The smallest set of best candidates whose probability reaches top_p.
void Sampler::Impl::keep_top_p() {
  if (options.top_p >= 1.0F) return;
  float maximum = candidates.front().logit;
  for (const Candidate& c : candidates) maximum = std::max(maximum, c.logit);
  double total = 0.0;
  for (const Candidate& c : candidates) total += std::exp(static_cast<double>(c.logit - maximum));

  // Sorting a whole vocabulary for a handful of likely tokens is wasteful: sort longer and longer heads of it.
  const double wanted = static_cast<double>(options.top_p) * total;
  double reached = 0.0;
  std::size_t n_sorted = 0;
  std::size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || reached < wanted)) {
    if (kept == n_sorted) {
      const std::size_t next = std::min(candidates.size(), std::max<std::size_t>(128, n_sorted * 4));
      std::partial_sort(candidates.begin() + static_cast<std::ptrdiff_t>(n_sorted),
                        candidates.begin() + static_cast<std::ptrdiff_t>(next), candidates.end(), better);
      n_sorted = next;
    }
    reached += std::exp(static_cast<double>(candidates[kept].logit - maximum));
    ++kept;
  }
  candidates.resize(kept);
}

/// Those at least min_p times as likely as the best.
void Sampler::Impl::keep_min_p() {
  if (options.min_p <= 0.0F) return;
  float maximum = candidates.front().logit;
  for (const Candidate& c : candidates) maximum = std::max(maximum, c.logit);
  const float lowest = maximum + std::log(options.min_p);
  std::erase_if(candidates, [&](const Candidate& c) { return c.logit < lowest; });
}

Token Sampler::Impl::draw() {
  const Candidate best = *std::min_element(candidates.begin(), candidates.end(), better);
  if (options.temperature <= 0.0F) return best.token;

  const double scale = 1.0 / static_cast<double>(options.temperature);
  const auto weight = [&](const Candidate& c) { return std::exp((static_cast<double>(c.logit) - best.logit) * scale); };
  double total = 0.0;
  for (const Candidate& c : candidates) total += weight(c);
  double left = random.uniform() * total;
  for (const Candidate& c : candidates) {
    left -= weight(c);
    if (left < 0.0) return c.token;
  }
  return best.token;  // rounding ate the last sliver
}

Sampler::Sampler(const SamplerOptions& options) {
  validate(options);
  impl_ = std::make_unique<Impl>(options);
}
Sampler::Sampler(const Sampler& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
Sampler& Sampler::operator=(const Sampler& other) {
  if (this != &other) impl_ = std::make_unique<Impl>(*other.impl_);
  return *this;
}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Sampled Sampler::apply(std::span<const float> logits, std::span<const std::uint8_t> mask) {
  if (logits.empty()) throw InvalidArgument("sampler: there are no logits");
  if (!mask.empty() && mask.size() != logits.size()) {
    throw InvalidArgument(text("sampler: the mask has ", mask.size(), " entries; expected ", logits.size(),
                               ", one per token of the vocabulary"));
  }
  float maximum = -std::numeric_limits<float>::infinity();
  bool any_number = false;
  for (const float logit : logits) {
    if (std::isnan(logit)) continue;
    any_number = true;
    maximum = std::max(maximum, std::min(logit, std::numeric_limits<float>::max()));
  }
  if (!any_number) throw InvalidArgument("sampler: every logit is NaN; the model or its input is broken");

  Impl& s = *impl_;
  s.gather(logits, mask);
  if (s.candidates.empty()) {
    throw InvalidArgument("sampler: no token is left to choose from; mask or logit bias forbid all of them");
  }
  if (s.options.temperature > 0.0F) {
    s.keep_top_k();
    s.keep_top_p();
    s.keep_min_p();
  }
  const Token token = s.draw();
  const float chosen = std::min(logits[static_cast<std::size_t>(token)], std::numeric_limits<float>::max());
  return {token, static_cast<float>(static_cast<double>(chosen) - log_sum_exp(logits, maximum))};
}

void Sampler::accept(Token token) {
  if (token < 0) throw InvalidArgument(text("sampler: ", token, " is no token"));
  Impl& s = *impl_;
  if (!s.has_penalties()) return;
  const int n = s.options.repeat_last_n;
  if (n < 0 || s.history.size() < static_cast<std::size_t>(n)) {
    s.history.push_back(token);
    return;
  }
  s.history[s.ring_next] = token;
  s.ring_next = (s.ring_next + 1) % s.history.size();
}

const SamplerOptions& Sampler::options() const { return impl_->options; }
std::uint32_t Sampler::seed() const { return impl_->seed; }

}  // namespace powerinfer
