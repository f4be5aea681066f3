// The SIMD vocabulary of one lane, in plain C++: the reference of its meaning, the scalar instruction set, and what
// dequantizes outside kernels. A template over a tag so that each user's copy stays inside its own translation unit.
//
// F holds kLanes floats, I as many 32-bit integers, Bytes 32 bytes, Sum what a dot of Bytes gives, D doubles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "quant/format.h"

namespace powerinfer::quant {

template <class Tag>
struct ScalarVocabulary {
  static constexpr std::size_t kLanes = 1;
  using F = float;
  using I = std::uint32_t;
  using D = double;
  struct Bytes {
    std::uint8_t v[32];
  };
  using Spread = Bytes;
  struct Sum {
    std::int32_t lo;  // columns 0..15
    std::int32_t hi;  // columns 16..31
  };

  // Floats. load_part and store_part touch n < kLanes values; the others are 0.
  static F zero() { return 0.0F; }
  static F broadcast(float x) { return x; }
  static F load(const float* p) { return *p; }
  static F load_part(const float*, std::size_t) { return 0.0F; }
  static void store(float* p, F x) { *p = x; }
  static void store_part(float*, std::size_t, F) {}
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return a > b ? a : b; }  // b if either is NaN
  static F min(F a, F b) { return a < b ? a : b; }
  static F abs(F a) { return base::bits_to_float(base::float_to_bits(a) & 0x7FFFFFFFU); }
  static float sum(F a) { return a; }
  static float max_of(F a) { return a; }

  // The same lanes as 32-bit integers, wrapping.
  static I as_int(F a) { return base::float_to_bits(a); }
  static F as_float(I a) { return base::bits_to_float(a); }
  static I int_broadcast(std::int32_t a) { return static_cast<std::uint32_t>(a); }
  static I int_add(I a, I b) { return a + b; }
  static I int_sub(I a, I b) { return a - b; }
  static I shift_left_23(I a) { return a << 23; }
  static I half_of(I a) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(a) >> 1); }

  // Double accumulators.
  static D double_zero() { return 0.0; }
  static D double_add(D acc, F a) { return acc + static_cast<double>(a); }
  static D double_add_square(D acc, F a, double shift) {  // acc + (a - shift)^2
    const double x = static_cast<double>(a) - shift;
    return acc + x * x;
  }
  static double double_sum(D a) { return a; }
  static double root(double a) { return __builtin_sqrt(a); }  // <cmath> is not for ISA units

  // Elements and scales in memory: unaligned, little endian.
  static std::uint16_t load_u16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }
  static F load_f32(const std::uint8_t* p) {
    return base::bits_to_float(load_u16(p) | static_cast<std::uint32_t>(load_u16(p + 2)) << 16);
  }
  static F load_f16(const std::uint8_t* p) { return base::half_to_float(load_u16(p)); }
  static F load_bf16(const std::uint8_t* p) { return base::bfloat16_to_float(load_u16(p)); }
  static void store_f16(std::uint16_t* p, F a) { *p = base::float_to_half(a); }
  static float half(const std::uint8_t* p) { return base::half_to_float(load_u16(p)); }
  static F broadcast_half(const std::uint8_t* p) { return half(p); }

  // Bytes.
  static Bytes load_bytes(const std::uint8_t* p) {
    Bytes out;
    for (std::size_t i = 0; i < 32; ++i) out.v[i] = p[i];
    return out;
  }
  static Bytes load_nibbles(const std::uint8_t* p) {  // 16 low nibbles, then 16 high ones
    Bytes out;
    for (std::size_t i = 0; i < 16; ++i) {
      out.v[i] = p[i] & 15U;
      out.v[i + 16] = static_cast<std::uint8_t>(p[i] >> 4);
    }
    return out;
  }
  static Bytes bits(const std::uint8_t* p, std::uint8_t value) {  // byte i: value if bit i is set, else 0
    Bytes out;
    for (std::size_t i = 0; i < 32; ++i) out.v[i] = (p[i / 8] >> (i % 8)) & 1U ? value : std::uint8_t{0};
    return out;
  }
  static Bytes field(const Bytes& a, int shift, std::uint8_t mask) {  // (a >> shift) & mask
    Bytes out;
    for (std::size_t i = 0; i < 32; ++i) out.v[i] = static_cast<std::uint8_t>(a.v[i] >> shift) & mask;
    return out;
  }
  static Bytes times16(const Bytes& a) {  // a < 16
    Bytes out;
    for (std::size_t i = 0; i < 32; ++i) out.v[i] = static_cast<std::uint8_t>(a.v[i] << 4);
    return out;
  }
  static Bytes either(const Bytes& a, const Bytes& b) {
    Bytes out;
    for (std::size_t i = 0; i < 32; ++i) out.v[i] = a.v[i] | b.v[i];
    return out;
  }
  static Bytes minus(const Bytes& a, std::int8_t b) {
    Bytes out;
    for (std::size_t i = 0; i < 32; ++i) out.v[i] = static_cast<std::uint8_t>(a.v[i] - b);
    return out;
  }

  // Signed bytes as floats, kLanes at a time; spread_scale prepares the scale that spread_at's result is multiplied by.
  static Spread spread(const Bytes& a) { return a; }
  static F spread_at(const Spread& a, std::size_t k) { return static_cast<float>(static_cast<std::int8_t>(a.v[k])); }
  static F spread_scale(F d) { return d; }

  // Dots of w (signed, or 0..127) with x (signed, -127..127), exact.
  static Sum dot_signed(const Bytes& w, const Bytes& x) {
    Sum sum{0, 0};
    for (std::size_t i = 0; i < 16; ++i) {
      sum.lo += static_cast<std::int8_t>(w.v[i]) * static_cast<std::int8_t>(x.v[i]);
      sum.hi += static_cast<std::int8_t>(w.v[i + 16]) * static_cast<std::int8_t>(x.v[i + 16]);
    }
    return sum;
  }
  static Sum dot_unsigned(const Bytes& w, const Bytes& x) { return dot_signed(w, x); }
  static Sum single(std::int32_t a) { return {a, 0}; }  // a in the first lane, 0 in the others
  static Sum sum_minus(Sum a, Sum b) { return {a.lo - b.lo, a.hi - b.hi}; }
  static F to_float(Sum a) { return static_cast<float>(a.lo + a.hi); }
  /// acc + a * d; with a pair, each half of the columns by its own scale.
  static F add_scaled(F acc, Sum a, F d) { return acc + to_float(a) * d; }
  static F add_scaled(F acc, Sum a, const ScalePair<ScalarVocabulary>& d) {
    return acc + (static_cast<float>(a.lo) * d.lo + static_cast<float>(a.hi) * d.hi);
  }

  /// Rounds half to even x * id for 32 values, clamped to -127..127 (NaN: any value), stores them, returns their sum.
  static std::int32_t round_to_int8(const float* x, F id, std::int8_t* q) {
    constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      const float scaled = min(max(x[i] * id, -127.0F), 127.0F);
      const std::uint32_t bits = base::float_to_bits(scaled + kMagic) - base::float_to_bits(kMagic);
      q[i] = static_cast<std::int8_t>(bits);
      sum += q[i];
    }
    return sum;
  }

  static void prefetch(const std::uint8_t*) {}
};

}  // namespace powerinfer::quant
