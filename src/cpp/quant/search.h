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
    const bool is_determined = determinant > 1e-6 * sw * swqq;  // else all codes are the same
    if (!is_determined && kOffsets == Offsets::kAny) return false;
    double scale = is_determined ? (sw * swqy - swy * swq) / determinant : 0.0;
    double offset = is_determined ? (swqq * swy - swq * swqy) / determinant : 0.0;
    if (kOffsets == Offsets::kNegative && (!is_determined || offset > -static_cast<double>(low))) {
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

/// The multiple of d in -128 .. 127, near to a fitted scale, with the least error; value = d * scale * q, q as in
/// fit_scale.
template <std::size_t kN, int kHalf>
int nearest_scale(const float* x, const float* w, float fitted, float d) noexcept {
  if (d == 0.0F || fitted == 0.0F) return 0;
  const float multiple = fitted / d;
  const int middle = multiple < -127.5F ? -128 : multiple > 126.5F ? 127 : static_cast<int>(multiple + 128.5F) - 128;
  int best = middle;
  double best_error = 0.0;
  bool found = false;
  for (int scale = middle - 1; scale <= middle + 1; ++scale) {
    if (scale < -128 || scale > 127 || scale == 0) continue;
    const float step = d * static_cast<float>(scale);
    const float inverse = 1.0F / step;
    double error[1];
    sum_terms<kN>(error, [&](std::size_t i, float (&terms)[1]) {
      const float q = code_of(x[i] * inverse, static_cast<float>(-kHalf), static_cast<float>(kHalf - 1));
      const float rest = x[i] - step * q;
      terms[0] = w[i] * rest * rest;
    });
    if (found && !(error[0] < best_error)) continue;
    found = true;
    best_error = error[0];
    best = scale;
  }
  return best;
}

struct AffineUnits {
  float scale;
  float min;
};
struct AffineCodes {
  unsigned scale = 0;
  unsigned min = 0;
};

/// The multiples of two units in 0 .. largest, near to a fit, with the least error; value = scale * q - min, q in
/// 0 .. kMax. Every scale nearby meets the minimum that fits its codes best.
template <std::size_t kN, int kMax>
AffineCodes nearest_affine_codes(const float* x, const float* w, const AffineFit& fit, const AffineUnits& unit,
                                 int largest) noexcept {
  constexpr auto kTop = static_cast<float>(kMax);
  const auto multiple = [&](double value, float of) {
    if (of == 0.0F || !(value > 0.0)) return 0;
    const double nearest = value / static_cast<double>(of) + 0.5;
    return nearest < static_cast<double>(largest) ? static_cast<int>(nearest) : largest;
  };
  const int middle = multiple(static_cast<double>(fit.scale), unit.scale);
  AffineCodes best{static_cast<unsigned>(middle),
                   static_cast<unsigned>(multiple(-static_cast<double>(fit.offset), unit.min))};
  double best_error = 0.0;
  bool found = false;
  for (int scale = middle - 1; scale <= middle + 1; ++scale) {
    if (scale < 0 || scale > largest) continue;
    const float step = unit.scale * static_cast<float>(scale);
    const float inverse = step == 0.0F ? 0.0F : 1.0F / step;
    int min = multiple(-static_cast<double>(fit.offset), unit.min);
    for (int round = 0; round < 2; ++round) {
      const float shift = unit.min * static_cast<float>(min);
      double sums[3];  // the error, and what the mean of the codes' values is above that of x
      sum_terms<kN>(sums, [&](std::size_t i, float (&terms)[3]) {
        const float value = step * code_of((x[i] + shift) * inverse, 0.0F, kTop);
        const float rest = x[i] + shift - value;
        terms[0] = w[i] * rest * rest;
        terms[1] = w[i] * (value - x[i]);
        terms[2] = w[i];
      });
      if (!found || sums[0] < best_error) {
        found = true;
        best_error = sums[0];
        best = {static_cast<unsigned>(scale), static_cast<unsigned>(min)};
      }
      const int better = multiple(sums[1] / sums[2], unit.min);
      if (better == min) break;
      min = better;
    }
  }
  return best;
}

}  // namespace powerinfer::quant
