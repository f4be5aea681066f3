// IEEE half and bfloat16 to float and back, in portable integer code (constant time, no tables). POD header: the
// functions are static so that ISA units, which include it, keep their copies to themselves.
#pragma once

#include <cstdint>

namespace powerinfer::base {

static constexpr float bits_to_float(std::uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }

static constexpr std::uint32_t float_to_bits(float value) noexcept { return __builtin_bit_cast(std::uint32_t, value); }

/// Exact for every half, NaN payloads and subnormals included.
static constexpr float half_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {
    // Subnormal: mantissa * 2^-24, exact in float.
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8F;
    return bits_to_float(sign | float_to_bits(magnitude));
  }
  const std::uint32_t wide = exponent == 31 ? 0xFFU : exponent + 112;
  return bits_to_float(sign | (wide << 23) | (mantissa << 13));
}

/// Round half to even; overflow becomes infinity; NaN stays a (quiet) NaN.
static constexpr std::uint16_t float_to_half(float value) noexcept {
  const std::uint32_t bits = float_to_bits(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude >= 0x7F800000U) {
    const bool nan = magnitude > 0x7F800000U;
    return static_cast<std::uint16_t>(sign | 0x7C00U | (nan ? 0x200U | ((magnitude >> 13) & 0x3FFU) : 0U));
  }
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to 65536 or more
  if (magnitude < 0x38800000U) {                                                    // below 2^-14: subnormal half
    if (magnitude < 0x33000000U) return sign;                                       // below 2^-25
    const std::uint32_t shift = 126U - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1U << shift) - 1U);
    const std::uint32_t half = 1U << (shift - 1U);
    const std::uint32_t up = (rest > half || (rest == half && (kept & 1U))) ? 1U : 0U;
    return static_cast<std::uint16_t>(sign | (kept + up));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

static constexpr float bfloat16_to_float(std::uint16_t value) noexcept {
  return bits_to_float(static_cast<std::uint32_t>(value) << 16);
}

/// Round half to even; NaN becomes quiet, as the gguf package does it.
static constexpr std::uint16_t float_to_bfloat16(float value) noexcept {
  const std::uint32_t bits = float_to_bits(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace powerinfer::base
