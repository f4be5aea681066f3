// Kernels over float vectors: activations, softmax pieces, norms, the input rounding. Elementwise results do not
// depend on where in the vector a value stands: tails run through the same vector code, padded.
#pragma once

#include "kernels/kernel_table.h"

namespace powerinfer::kernels::body {

/// y[i] = op(x[i]) over lanes.
template <class V, class Op>
void map(const float* x, std::size_t n, float* y, Op op) {
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(y + i, op(V::load(x + i)));
  if (i < n) V::store_part(y + i, n - i, op(V::load_part(x + i, n - i)));
}

/// y[i] = op(x[i], y[i]) over lanes.
template <class V, class Op>
void zip(const float* x, std::size_t n, float* y, Op op) {
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(y + i, op(V::load(x + i), V::load(y + i)));
  if (i < n) V::store_part(y + i, n - i, op(V::load_part(x + i, n - i), V::load_part(y + i, n - i)));
}

/// exp to 2 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, then e^r by its Taylor-like minimax polynomial, times 2^n in two
/// steps so that results down to subnormals and up to infinity come out right. NaN stays NaN.
template <class V>
typename V::F exp(typename V::F x) {
  using F = typename V::F;
  // Beyond these e^x is 0 or infinity in f32. V::max and V::min give their second argument for NaN.
  const F bounded = V::min(V::broadcast(90.0F), V::max(V::broadcast(-110.0F), x));
  const F magic = V::broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer, found in the low bits
  const F shifted = V::fma(bounded, V::broadcast(1.44269504F), magic);
  const F n = V::sub(shifted, magic);
  // ln 2 in two parts; the first has so few bits that n times it is exact (Cody and Waite).
  const F r = V::fma(n, V::broadcast(2.12194440e-4F), V::fma(n, V::broadcast(-0.693359375F), bounded));
  // Coefficients of the Cephes library's expf.
  F p = V::broadcast(1.9875691500e-4F);
  p = V::fma(p, r, V::broadcast(1.3981999507e-3F));
  p = V::fma(p, r, V::broadcast(8.3334519073e-3F));
  p = V::fma(p, r, V::broadcast(4.1665795894e-2F));
  p = V::fma(p, r, V::broadcast(1.6666665459e-1F));
  p = V::fma(p, r, V::broadcast(5.0000001201e-1F));
  p = V::add(V::fma(V::mul(r, r), p, r), V::broadcast(1.0F));
  const auto power = V::int_sub(V::as_int(shifted), V::as_int(magic));
  const auto first = V::half_of(power);
  const auto second = V::int_sub(power, first);
  const auto bias = V::int_broadcast(127);
  const F scale_a = V::as_float(V::shift_left_23(V::int_add(first, bias)));
  const F scale_b = V::as_float(V::shift_left_23(V::int_add(second, bias)));
  return V::mul(V::mul(p, scale_a), scale_b);
}

/// x / (1 + exp(-steepness)); x is +-infinity or NaN: NaN where the limit is not defined.
template <class V>
typename V::F times_sigmoid(typename V::F x, typename V::F steepness) {
  return V::div(x, V::add(V::broadcast(1.0F), exp<V>(V::sub(V::zero(), steepness))));
}

template <class V>
void silu(std::size_t n, float* x) noexcept {
  map<V>(x, n, x, [](typename V::F a) { return times_sigmoid<V>(a, a); });
}

template <class V>
void gelu_tanh(std::size_t n, float* x) noexcept {
  // a / 2 * (1 + tanh(u)) = a / (1 + exp(-2u)), u = sqrt(2 / pi) * (a + 0.044715 a^3)  (Hendrycks and Gimpel, 2016)
  map<V>(x, n, x, [](typename V::F a) {
    const auto inner = V::fma(V::mul(V::mul(a, a), a), V::broadcast(0.044715F), a);
    return times_sigmoid<V>(a, V::mul(inner, V::broadcast(1.59576912F)));
  });
}

template <class V>
void add(const float* x, std::size_t n, float* y) noexcept {
  zip<V>(x, n, y, [](typename V::F a, typename V::F b) { return V::add(b, a); });
}

template <class V>
void mul(const float* x, std::size_t n, float* y) noexcept {
  zip<V>(x, n, y, [](typename V::F a, typename V::F b) { return V::mul(b, a); });
}

template <class V>
void scale(float a, std::size_t n, float* y) noexcept {
  map<V>(y, n, y, [a](typename V::F b) { return V::mul(b, V::broadcast(a)); });
}

template <class V>
float max(const float* x, std::size_t n) noexcept {
  if (n < V::kLanes) {
    float best = x[0];
    for (std::size_t i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
    return best;
  }
  typename V::F best = V::load(x);
  for (std::size_t i = V::kLanes; i + V::kLanes <= n; i += V::kLanes) best = V::max(V::load(x + i), best);
  best = V::max(V::load(x + n - V::kLanes), best);  // the tail, together with some already seen
  return V::max_of(best);
}

template <class V>
float exp_sum(float max, std::size_t n, float* x) noexcept {
  const auto shift = V::broadcast(max);
  auto acc = V::zero();
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    const auto value = exp<V>(V::sub(V::load(x + i), shift));
    V::store(x + i, value);
    acc = V::add(acc, value);
  }
  if (i < n) {
    V::store_part(x + i, n - i, exp<V>(V::sub(V::load_part(x + i, n - i), shift)));
    acc = V::add(acc, V::load_part(x + i, n - i));
  }
  return V::sum(acc);
}

template <class V>
void f32_to_f16(const float* x, std::size_t n, std::uint16_t* y) noexcept {
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_f16(y + i, V::load(x + i));
  if (i < n) {
    std::uint16_t tail[V::kLanes];
    V::store_f16(tail, V::load_part(x + i, n - i));
    for (std::size_t k = 0; i + k < n; ++k) y[i + k] = tail[k];
  }
}

/// Sum over i of (x[i] - shift)^2, or of x[i]; in double.
template <class V>
double sum_of_squares(const float* x, std::size_t n, double shift) {
  auto acc = V::double_zero();
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) acc = V::double_add_square(acc, V::load(x + i), shift);
  double total = V::double_sum(acc);
  for (; i < n; ++i) total += (static_cast<double>(x[i]) - shift) * (static_cast<double>(x[i]) - shift);
  return total;
}
template <class V>
double sum_of(const float* x, std::size_t n) {
  auto acc = V::double_zero();
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) acc = V::double_add(acc, V::load(x + i));
  double total = V::double_sum(acc);
  for (; i < n; ++i) total += static_cast<double>(x[i]);
  return total;
}

template <class V>
void rms_norm(const float* x, const float* weight, std::size_t n, float eps, float* y) noexcept {
  const double mean = sum_of_squares<V>(x, n, 0.0) / static_cast<double>(n);
  const auto factor = V::broadcast(static_cast<float>(1.0 / V::root(mean + static_cast<double>(eps))));
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    V::store(y + i, V::mul(V::mul(V::load(x + i), factor), V::load(weight + i)));
  }
  if (i < n) {
    const auto scaled = V::mul(V::load_part(x + i, n - i), factor);
    V::store_part(y + i, n - i, V::mul(scaled, V::load_part(weight + i, n - i)));
  }
}

template <class V>
void layer_norm(const float* x, const float* weight, const float* bias, std::size_t n, float eps, float* y) noexcept {
  const double mean = sum_of<V>(x, n) / static_cast<double>(n);
  const double variance = sum_of_squares<V>(x, n, mean) / static_cast<double>(n);
  const auto factor = V::broadcast(static_cast<float>(1.0 / V::root(variance + static_cast<double>(eps))));
  // The mean in two floats: its rounding would be large against the spread of x where the mean is.
  const auto mean_high = V::broadcast(static_cast<float>(mean));
  const auto mean_low = V::broadcast(static_cast<float>(mean - static_cast<double>(static_cast<float>(mean))));
  const auto apply = [&](typename V::F a, typename V::F w, typename V::F b) {
    return V::fma(V::mul(V::sub(V::sub(a, mean_high), mean_low), factor), w, b);
  };
  std::size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    const auto b = bias == nullptr ? V::zero() : V::load(bias + i);
    V::store(y + i, apply(V::load(x + i), V::load(weight + i), b));
  }
  if (i < n) {
    const auto b = bias == nullptr ? V::zero() : V::load_part(bias + i, n - i);
    V::store_part(y + i, n - i, apply(V::load_part(x + i, n - i), V::load_part(weight + i, n - i), b));
  }
}

/// The rule of DotInput. A NaN or an infinity makes d NaN, so that it reaches every dot with the block; the integers
/// cannot say it.
template <class V>
void quantize_block(const float* x, std::int8_t* q, float* d, std::int32_t* sum) {
  constexpr float kLargestFloat = 3.40282347e+38F;
  auto largest = V::zero();
  auto fault = V::zero();  // 0 times a finite number leaves +0
  for (std::size_t k = 0; k < kBlock; k += V::kLanes) {
    const auto value = V::load(x + k);
    largest = V::max(V::abs(value), largest);
    fault = V::fma(value, V::zero(), fault);
  }
  const float top = V::max_of(largest);
  *d = top / 127.0F + V::sum(fault);
  // The inverse of 0, and of numbers so small that they do not count, is infinite: 0 times it would be NaN.
  const float inverse = 127.0F / top;
  *sum = V::round_to_int8(x, V::broadcast(inverse <= kLargestFloat ? inverse : 0.0F), q);
}

template <class V>
void quantize_input(const float* x, std::size_t n, std::int8_t* q, float* d, std::int32_t* sum) noexcept {
  const std::size_t n_whole = n / kBlock;
  for (std::size_t b = 0; b < n_whole; ++b) quantize_block<V>(x + b * kBlock, q + b * kBlock, d + b, sum + b);
  if (n % kBlock != 0) {
    float tail[kBlock] = {};
    for (std::size_t i = 0; i < n % kBlock; ++i) tail[i] = x[n_whole * kBlock + i];
    quantize_block<V>(tail, q + n_whole * kBlock, d + n_whole, sum + n_whole);
  }
}

}  // namespace powerinfer::kernels::body
