// Choosing the next token: logit bias, penalties, top-k, top-p, min-p, temperature, in llama.cpp's order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "powerinfer/tokenizer.h"

namespace powerinfer {

struct SamplerOptions {
  std::uint32_t seed = 0xFFFFFFFF;  ///< 0xFFFFFFFF: a random one
  float temperature = 0.8F;         ///< <= 0: greedy
  int top_k = 40;                   ///< <= 0: off
  float top_p = 0.95F;              ///< 1: off
  float min_p = 0.05F;              ///< 0: off
  float repeat_penalty = 1.0F;      ///< 1: off
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  int repeat_last_n = 64;  ///< tokens the penalties look at; -1: all
  std::vector<std::pair<Token, float>> logit_bias = {};
};

struct Sampled {
  Token token;
  float logprob;  ///< log of the softmax of the unmodified logits at `token`
};

/// A chain of samplers with its own random state. Copyable; a copy continues independently from the same state.
class Sampler {
 public:
  /// Throws InvalidArgument on NaN or out-of-range options.
  explicit Sampler(const SamplerOptions& options = {});
  Sampler(const Sampler&);
  Sampler& operator=(const Sampler&);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  /// Picks a token from `logits` [n_vocab]; `mask` [n_vocab] (empty: none) forbids tokens where it is 0.
  /// Throws InvalidArgument when the mask forbids everything or the sizes differ, or when all logits are NaN.
  Sampled apply(std::span<const float> logits, std::span<const std::uint8_t> mask = {});
  /// Tells the sampler that `token` has become part of the text (penalties look at it).
  void accept(Token token);
  const SamplerOptions& options() const;
  std::uint32_t seed() const;  ///< the seed in use, also when a random one was asked for

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace powerinfer
