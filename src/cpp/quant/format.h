// What a block format is to the kernels. POD/template header: ISA units include it.
//
// A format is a struct of constants and static member templates over a SIMD vocabulary V (quant/scalar.h is its
// reference). Every format is seen as sub-blocks of 32 columns, whatever its own block length. It has
//   kType, kName, kBlockLen, kBlockBytes   GGUF's number and name, geometry
//   kInt8Input                             its dot meets the int8-rounded input; else the f32 input
//   values<V>(row, b)                      sub-block b as floats: .at(k) gives values k * V::kLanes ..., exactly as the
//                                          gguf package dequantizes them
//   quantize(x, block)                     f32 to one block, as the gguf package does it (where that has a rule)
//   quantize(x, weight, block)             f32 to one block with the least sum of weight * error^2 that a search
//                                          finds; weight null: all 1 (where the format has a choice of scale)
// and, with kInt8Input,
//   load<V>(row, b)                        its bytes q and scales: value = d * (q - kOffset) + m
//   kSigned                                q may be negative (then kOffset is 0); else q is 0..127
//   kOffset, kHasMin                       as in the formula
// and, without kInt8Input, kElementBytes, the distance of values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/half.h"

namespace powerinfer::quant {

/// Two scales, one for each 16 columns of a sub-block.
template <class V>
struct ScalePair {
  typename V::F lo;
  typename V::F hi;
};

template <class V, class Scale = typename V::F>
struct SubBlock {
  typename V::Bytes q;
  Scale d;
};

template <class V>
struct SubBlockMin {
  typename V::Bytes q;
  typename V::F d;
  typename V::F m;
};

/// Dequantized sub-blocks of the forms d * q, d * q + m, and d * q with two scales.
template <class V>
struct ScaledValues {
  typename V::Spread q;
  typename V::F d;
  typename V::F at(std::size_t k) const { return V::mul(V::spread_at(q, k), d); }
};

template <class V>
struct ScaledMinValues {
  typename V::Spread q;
  typename V::F d;
  typename V::F m;
  typename V::F at(std::size_t k) const { return V::add(V::mul(V::spread_at(q, k), d), m); }
};

template <class V>
struct PairScaledValues {
  typename V::Spread q;
  ScalePair<V> d;
  typename V::F at(std::size_t k) const { return V::mul(V::spread_at(q, k), k * V::kLanes < 16 ? d.lo : d.hi); }
};

template <class V>
ScaledValues<V> scaled_values(const typename V::Bytes& q, typename V::F d) {
  return {V::spread(q), V::spread_scale(d)};
}
template <class V>
ScaledMinValues<V> scaled_values(const typename V::Bytes& q, typename V::F d, typename V::F m) {
  return {V::spread(q), V::spread_scale(d), m};
}
template <class V>
PairScaledValues<V> scaled_values(const typename V::Bytes& q, const ScalePair<V>& d) {
  return {V::spread(q), {V::spread_scale(d.lo), V::spread_scale(d.hi)}};
}

// Helpers of the quantizers; static: this header is part of ISA units.
static constexpr void store_half(float value, std::uint8_t* out) noexcept {
  const std::uint16_t bits = base::float_to_half(value);
  out[0] = static_cast<std::uint8_t>(bits);
  out[1] = static_cast<std::uint8_t>(bits >> 8);
}
static constexpr float magnitude(float value) noexcept { return value < 0.0F ? -value : value; }
static constexpr float inverse_or_zero(float value) noexcept { return value == 0.0F ? 0.0F : 1.0F / value; }
/// Truncates to 0..limit; NaN gives 0.
static constexpr std::uint8_t truncate_to(float value, int limit) noexcept {
  const float positive = value > 0.0F ? value : 0.0F;
  const float top = static_cast<float>(limit);
  return static_cast<std::uint8_t>(static_cast<int>(positive < top ? positive : top));
}
struct Range {
  float low;
  float high;
};
/// Least and greatest of n values, n a multiple of 8 (eight interleaved parts, which compilers vectorize).
static constexpr Range range_of(const float* x, std::size_t n) noexcept {
  float low[8] = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
  float high[8] = {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
  for (std::size_t i = 8; i < n; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) {
      low[k] = x[i + k] < low[k] ? x[i + k] : low[k];
      high[k] = x[i + k] > high[k] ? x[i + k] : high[k];
    }
  }
  for (std::size_t k = 1; k < 8; ++k) {
    low[0] = low[k] < low[0] ? low[k] : low[0];
    high[0] = high[k] > high[0] ? high[k] : high[0];
  }
  return {low[0], high[0]};
}
/// The value of largest magnitude, the first of equals; n a multiple of 8.
static constexpr float extreme(const float* x, std::size_t n) noexcept {
  const auto [low, high] = range_of(x, n);
  if (-low > high) return low;
  if (high > -low) return high;
  std::size_t i = 0;
  while (i + 1 < n && magnitude(x[i]) != high) ++i;
  return x[i];
}

}  // namespace powerinfer::quant
