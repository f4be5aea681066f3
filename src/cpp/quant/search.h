// The search for scales: given values x and weights w, the scale (and offset) whose rounded codes q leave the least
// sum of w * (x - value(q))^2. A grid of first guesses, least squares for each guess's codes, then alternating rounding
// and least squares (Lloyd's method) from the best. All sums have eight interleaved parts, which compilers vectorize.
#pragma once

#include <cstddef>

namespace powerinfer::quant {

inline constexpr std::size_t kSumLanes = 8;

/// The code of x * inverse + shift within low..high, as a float: half rounds up.
static inline float code_of(float scaled, float low, float high) noexcept {
  const float above = scaled > low ? scaled : low;
  const float within = above < high ? above : high;
  return static_cast<float>(static_cast<int>(within + 64.5F) - 64);  // truncation rounds down above zero only
}

/// Calls term(i, part) for i < kN with eight parts of kSums sums, and adds the parts.
template <std::size_t kN, std::size_t kSums, class Term>
void sum_terms(double (&sums)[kSums], const Term& term) noexcept {
  float parts[kSums][kSumLanes] = {};
  for (std::size_t i = 0; i < kN; i += kSumLanes) {
    for (std::size_t k = 0; k < kSumLanes; ++k) {
      float terms[kSums];
      term(i + k, terms);
      for (std::size_t s = 0; s < kSums; ++s) parts[s][k] += terms[s];
    }
  }
  for (std::size_t s = 0; s < kSums; ++s) {
    sums[s] = 0.0;
    for (const float part : parts[s]) sums[s] += static_cast<double>(part);
  }
}

/// w, or ones where w is null or sums to nothing (an input that was never seen must not lose its weights).
template <std::size_t kN>
const float* weights_or_ones(const float* w) noexcept {
  struct Ones {
    float values[kN];
    constexpr Ones() : values() {
      for (float& value : values) value = 1.0F;
    }
  };
  static constexpr Ones kOnes;
  if (w == nullptr) return kOnes.values;
  for (std::size_t i = 0; i < kN; ++i) {
    if (w[i] > 0.0F) return w;
  }
  return kOnes.values;
}

/// value = scale * q, q in -kHalf .. kHalf - 1. Returns the best scale (0 for zeros).
template <std::size_t kN, int kHalf>
float fit_scale(const float* x, const float* w, float first_scale) noexcept {
  constexpr int kGuesses = 9;  // to either side, a tenth of a code each at the largest value
  constexpr auto kLow = static_cast<float>(-kHalf);
  constexpr auto kHigh = static_cast<float>(kHalf - 1);
  if (!(first_scale < 0.0F || first_scale > 0.0F)) return 0.0F;
  double best_gain = 0.0;
  float best = first_scale;
  // Least squares for the codes of one scale: its error is sum w x^2 - gain.
  const auto improve = [&](float inverse) {
    double sums[2];
    sum_terms<kN>(sums, [&](std::size_t i, float (&terms)[2]) {
      const float q = code_of(x[i] * inverse, kLow, kHigh);
      const float wq = w[i] * q;
      terms[0] = wq * x[i];
      terms[1] = wq * q;
    });
    if (!(sums[1] > 0.0) || !(sums[0] * sums[0] > best_gain * sums[1])) return false;
    best_gain = sums[0] * sums[0] / sums[1];
    best = static_cast<float>(sums[0] / sums[1]);
    return true;
  };
  for (int guess = -kGuesses; guess <= kGuesses; ++guess) {
    improve((1.0F + 0.1F * static_cast<float>(guess) / static_cast<float>(kHalf)) / first_scale);
  }
  for (int round = 0; round < 4 && best != 0.0F && improve(1.0F / best); ++round) {
  }
  return best;
}

struct AffineFit {
  float scale = 0.0F;
  float offset = 0.0F;
};

enum class Offsets { kAny, kNegative };

/// value = scale * q + offset, q in 0 .. kMax, scale >= 0; kNegative: offset <= 0.
template <std::size_t kN, int kMax, Offsets kOffsets>
AffineFit fit_affine(const float* x, const float* w) noexcept {
  constexpr int kGuesses = 10;
  constexpr auto kTop = static_cast<float>(kMax);
  float low = x[0];
  float high = x[0];
  for (std::size_t i = 1; i < kN; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  if (kOffsets == Offsets::kNegative && low > 0.0F) low = 0.0F;
  AffineFit best{0.0F, low};
  if (!(high > low)) return best;

  double constant[3];  // sums of w, w y, w y^2 with y = x - low
  sum_terms<kN>(constant, [&](std::size_t i, float (&terms)[3]) {
    const float y = x[i] - low;
    terms[0] = w[i];
    terms[1] = w[i] * y;
    terms[2] = w[i] * y * y;
  });
  const auto [sw, swy, swyy] = constant;
  double best_error = 0.0;
  bool found = false;
  const auto improve = [&](float inverse, float shift) {
    double sums[3];
    sum_terms<kN>(sums, [&](std::size_t i, float (&terms)[3]) {
      const float y = x[i] - low;
      const float q = code_of((y - shift) * inverse, 0.0F, kTop);
      const float wq = w[i] * q;
      terms[0] = wq;
      terms[1] = wq * q;
      terms[2] = wq * y;
    });
    const auto [swq, swqq, swqy] = sums;
    const double determinant = sw * swqq - swq * swq;
    if (!(determinant > 0.0)) return false;
    double scale = (sw * swqy - swy * swq) / determinant;
    double offset = (swqq * swy - swq * swqy) / determinant;
    if (kOffsets == Offsets::kNegative && offset > -static_cast<double>(low)) {
      offset = -static_cast<double>(low);
      scale = (swqy - offset * swq) / swqq;
    }
    if (!(scale > 0.0)) return false;
    const double error =
        swyy + scale * (scale * swqq + 2.0 * (offset * swq - swqy)) + offset * (offset * sw - 2.0 * swy);
    if (found && !(error < best_error)) return false;
    found = true;
    best_error = error;
    best = {static_cast<float>(scale), static_cast<float>(offset + static_cast<double>(low))};
    return true;
  };
  for (int guess = -kGuesses; guess <= kGuesses; ++guess) {
    improve((kTop + 0.1F * static_cast<float>(guess)) / (high - low), 0.0F);
  }
  for (int round = 0; round < 4 && found && improve(1.0F / best.scale, best.offset - low); ++round) {
  }
  return best;
}

}  // namespace powerinfer::quant
