// The sampler against a slow, obvious twin in double precision, and its promises: seeds, copies, masks, errors.
#include "powerinfer/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "powerinfer/error.h"
#include "test.h"

namespace {

using powerinfer::InvalidArgument;
using powerinfer::Sampled;
using powerinfer::Sampler;
using powerinfer::SamplerOptions;
using powerinfer::Token;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::size_t n, unsigned seed, float spread = 3.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

/// Probability of every token under the chain, computed step by step on whole arrays.
std::map<Token, double> twin(std::vector<double> logits, const SamplerOptions& o, const std::vector<Token>& history) {
  for (const auto& [token, bias] : o.logit_bias) logits[static_cast<std::size_t>(token)] += bias;
  std::size_t first = 0;
  if (o.repeat_last_n >= 0 && history.size() > static_cast<std::size_t>(o.repeat_last_n)) {
    first = history.size() - static_cast<std::size_t>(o.repeat_last_n);
  }
  std::map<Token, int> counts;
  for (std::size_t i = first; i < history.size(); ++i) ++counts[history[i]];
  for (const auto& [token, count] : counts) {
    double& logit = logits[static_cast<std::size_t>(token)];
    if (logit > 0) {
      logit /= o.repeat_penalty;
    } else {
      logit *= o.repeat_penalty;
    }
    logit -= count * static_cast<double>(o.frequency_penalty) + static_cast<double>(o.presence_penalty);
  }
  std::vector<Token> order;
  for (std::size_t i = 0; i < logits.size(); ++i) order.push_back(static_cast<Token>(i));
  const auto logit = [&](Token t) { return logits[static_cast<std::size_t>(t)]; };
  std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return logit(a) > logit(b); });
  if (o.top_k > 0 && static_cast<std::size_t>(o.top_k) < order.size()) order.resize(static_cast<std::size_t>(o.top_k));

  const auto softmax = [&](double temperature) {
    std::vector<double> p;
    double total = 0;
    for (const Token t : order) {
      p.push_back(std::exp((logit(t) - logit(order[0])) / temperature));
      total += p.back();
    }
    for (double& value : p) value /= total;
    return p;
  };
  if (o.top_p < 1) {
    const std::vector<double> p = softmax(1);
    double sum = 0;
    std::size_t kept = 0;
    while (kept < p.size() && (kept == 0 || sum < static_cast<double>(o.top_p))) sum += p[kept++];
    order.resize(kept);
  }
  if (o.min_p > 0) {
    const std::vector<double> p = softmax(1);
    std::size_t kept = 0;
    while (kept < p.size() && p[kept] >= static_cast<double>(o.min_p) * p[0]) ++kept;
    order.resize(kept);
  }
  const std::vector<double> p = softmax(static_cast<double>(o.temperature));
  std::map<Token, double> result;
  for (std::size_t i = 0; i < order.size(); ++i) result[order[i]] = p[i];
  return result;
}

TEST(distribution_equals_the_twin) {
  std::mt19937 engine(7);
  const auto pick = [&](double low, double high) {
    return static_cast<float>(std::uniform_real_distribution<double>(low, high)(engine));
  };
  for (unsigned round = 0; round < 40; ++round) {
    const std::size_t n = round % 4 == 0 ? 700 : 30;
    SamplerOptions o;
    o.seed = round;
    o.temperature = pick(0.2, 2);
    o.top_k = round % 3 == 0 ? 0 : static_cast<int>(pick(1, 60));
    o.top_p = round % 5 == 0 ? 1.0F : pick(0, 1);
    o.min_p = round % 2 == 0 ? 0.0F : pick(0, 0.3);
    o.repeat_penalty = pick(0.5, 2);
    o.frequency_penalty = pick(-0.5, 0.5);
    o.presence_penalty = pick(-0.5, 0.5);
    o.repeat_last_n = static_cast<int>(round % 7) - 1;
    o.logit_bias = {{3, 2.0F}, {4, -kInf}};
    const std::vector<float> logits = random_logits(n, round);
    std::vector<Token> history;
    Sampler sampler(o);
    for (int i = 0; i < 12; ++i) {
      history.push_back(static_cast<Token>(engine() % 8));
      sampler.accept(history.back());
    }
    const auto expected = twin(std::vector<double>(logits.begin(), logits.end()), o, history);

    constexpr int kDraws = 20000;
    std::map<Token, int> seen;
    for (int i = 0; i < kDraws; ++i) ++seen[sampler.apply(logits).token];
    for (const auto& [token, count] : seen) {
      CHECK(expected.contains(token));
    }
    for (const auto& [token, p] : expected) {
      // Five standard deviations of a binomial count, and a little for near-zero probabilities.
      CHECK(std::abs(seen[token] - p * kDraws) <= 5 * std::sqrt(p * (1 - p) * kDraws) + 4);
    }
  }
}

TEST(greedy_takes_the_best_and_ties_go_to_the_lower_id) {
  SamplerOptions o;
  o.temperature = 0;
  Sampler sampler(o);
  CHECK_EQ(sampler.apply(std::vector<float>{1, 5, 2, 5}).token, 1);
  CHECK_EQ(sampler.apply(std::vector<float>{-kInf, -3, kNan, -2}).token, 3);
  CHECK_EQ(sampler.apply(std::vector<float>{0, kInf, 2}).token, 1);
  o.temperature = -1;
  o.logit_bias = {{1, -kInf}};
  CHECK_EQ(Sampler(o).apply(std::vector<float>{1, 5, 2}).token, 2);
}

TEST(penalties_apply_to_greedy_too_and_forget_after_the_window) {
  SamplerOptions o;
  o.temperature = 0;
  o.repeat_penalty = 3;
  o.repeat_last_n = 2;
  Sampler sampler(o);
  const std::vector<float> logits{6, 5, -1};
  sampler.accept(0);
  CHECK_EQ(sampler.apply(logits).token, 1);
  sampler.accept(2);
  CHECK_EQ(sampler.apply(logits).token, 1);
  sampler.accept(2);
  CHECK_EQ(sampler.apply(logits).token, 0);
}

TEST(logprob_is_of_the_unmodified_logits) {
  SamplerOptions o;
  o.temperature = 0.5F;
  o.top_k = 1;
  o.logit_bias = {{2, 100.0F}};
  const std::vector<float> logits{1, 2, 0.5F, kNan, -kInf};
  const Sampled sampled = Sampler(o).apply(logits);
  CHECK_EQ(sampled.token, 2);
  const double total = std::exp(1.0) + std::exp(2.0) + std::exp(0.5);
  CHECK(std::abs(sampled.logprob - (0.5 - std::log(total))) < 1e-6);
}

TEST(same_seed_same_tokens_and_known_numbers) {
  SamplerOptions o;
  o.seed = 42;
  const std::vector<float> logits = random_logits(1000, 1);
  Sampler a(o);
  Sampler b(o);
  o.seed = 43;
  Sampler other(o);
  int n_different = 0;
  for (int i = 0; i < 200; ++i) {
    const Token token = a.apply(logits).token;
    CHECK_EQ(token, b.apply(logits).token);
    n_different += token != other.apply(logits).token ? 1 : 0;
  }
  CHECK(n_different > 20);

  // The generator itself is fixed: even chances of 16 tokens show the first bits of SplitMix64 from 0.
  SamplerOptions plain;
  plain.seed = 0;
  plain.temperature = 1;
  plain.top_k = 0;
  plain.top_p = 1;
  plain.min_p = 0;
  Sampler sampler(plain);
  const std::vector<float> even(16, 0.0F);
  for (const Token expected : {0xE, 0x6, 0x0, 0xF}) CHECK_EQ(sampler.apply(even).token, expected);
}

TEST(a_random_seed_is_reported) {
  const Sampler a{SamplerOptions{}};
  SamplerOptions o;
  o.seed = a.seed();
  const std::vector<float> logits = random_logits(500, 2);
  Sampler first = a;
  Sampler second(o);
  for (int i = 0; i < 50; ++i) CHECK_EQ(first.apply(logits).token, second.apply(logits).token);
}

TEST(a_copy_goes_on_alone) {
  SamplerOptions o;
  o.seed = 5;
  o.repeat_penalty = 1.5F;
  const std::vector<float> logits = random_logits(100, 3);
  Sampler a(o);
  a.accept(a.apply(logits).token);
  Sampler b = a;
  Sampler c{SamplerOptions{}};
  c = a;
  for (int i = 0; i < 50; ++i) {
    const Token token = a.apply(logits).token;
    a.accept(token);
    CHECK_EQ(token, b.apply(logits).token);
    b.accept(token);
    CHECK_EQ(token, c.apply(logits).token);
    c.accept(token);
  }
}

TEST(a_mask_forbids) {
  SamplerOptions o;
  o.temperature = 0;
  Sampler sampler(o);
  const std::vector<float> logits{9, 8, 7};
  CHECK_EQ(sampler.apply(logits, std::vector<std::uint8_t>{0, 0, 1}).token, 2);
  CHECK_THROWS(sampler.apply(logits, std::vector<std::uint8_t>{0, 0, 0}), InvalidArgument, "no token is left");
  CHECK_THROWS(sampler.apply(logits, std::vector<std::uint8_t>{1, 1}), InvalidArgument, "mask has 2 entries");
}

TEST(extreme_logits_stay_numbers) {
  SamplerOptions o;
  o.repeat_penalty = 0.1F;
  o.seed = 1;
  Sampler sampler(o);
  sampler.accept(0);
  const float huge = std::numeric_limits<float>::max();
  for (const Sampled& s :
       {sampler.apply(std::vector<float>{huge, -huge, 0}), sampler.apply(std::vector<float>{kInf, 1, kNan})}) {
    CHECK_EQ(s.token, 0);
    CHECK_EQ(s.logprob, 0.0F);
  }
}

TEST(bad_input_is_refused) {
  const auto with = [](auto change) {
    SamplerOptions o;
    change(o);
    return o;
  };
  CHECK_THROWS(Sampler(with([](auto& o) { o.temperature = kNan; })), InvalidArgument, "temperature");
  CHECK_THROWS(Sampler(with([](auto& o) { o.temperature = kInf; })), InvalidArgument, "temperature");
  CHECK_THROWS(Sampler(with([](auto& o) { o.top_p = 1.5F; })), InvalidArgument, "top_p");
  CHECK_THROWS(Sampler(with([](auto& o) { o.top_p = kNan; })), InvalidArgument, "top_p");
  CHECK_THROWS(Sampler(with([](auto& o) { o.min_p = -0.1F; })), InvalidArgument, "min_p");
  CHECK_THROWS(Sampler(with([](auto& o) { o.repeat_penalty = 0; })), InvalidArgument, "repeat_penalty");
  CHECK_THROWS(Sampler(with([](auto& o) { o.frequency_penalty = kNan; })), InvalidArgument, "frequency_penalty");
  CHECK_THROWS(Sampler(with([](auto& o) { o.presence_penalty = kInf; })), InvalidArgument, "presence_penalty");
  CHECK_THROWS(Sampler(with([](auto& o) { o.repeat_last_n = -2; })), InvalidArgument, "repeat_last_n");
  CHECK_THROWS(Sampler(with([](auto& o) { o.logit_bias = {{1, kNan}}; })), InvalidArgument, "NaN");
  Sampler sampler(with([](auto& o) { o.logit_bias = {{5, 1.0F}}; }));
  CHECK_THROWS(sampler.apply(std::vector<float>{1, 2}), InvalidArgument, "token 5");
  Sampler plain{SamplerOptions{}};
  CHECK_THROWS(plain.apply(std::vector<float>{}), InvalidArgument, "no logits");
  CHECK_THROWS(plain.apply(std::vector<float>{kNan, kNan}), InvalidArgument, "NaN");
  CHECK_THROWS(plain.accept(-1), InvalidArgument, "no token");
}

}  // namespace

TEST_MAIN()
