// Q4_K: 256 nibbles in 8 sub-blocks of 32; value = (d * scale) * q - (dmin * min), scales and mins of 6 bits.
// Bytes 32g .. 32g+31 hold sub-blocks 2g (low nibbles) and 2g + 1 (high).
#pragma once

#include "quant/format.h"
#include "quant/search.h"

namespace powerinfer::quant {

/// The 6-bit scales and minima of Q4_K and Q5_K: eight of each in 12 bytes.
struct PackedScales {
  std::uint8_t bytes[12];
};
static constexpr std::uint8_t packed_scale(const PackedScales& packed, std::size_t j) noexcept {
  const std::uint8_t* p = packed.bytes;
  if (j < 4) return static_cast<std::uint8_t>(p[j] & 63U);
  return static_cast<std::uint8_t>((p[j + 4] & 15U) | ((p[j - 4] >> 2) & 48U));
}
static constexpr std::uint8_t packed_min(const PackedScales& packed, std::size_t j) noexcept {
  const std::uint8_t* p = packed.bytes;
  if (j < 4) return static_cast<std::uint8_t>(p[j + 4] & 63U);
  return static_cast<std::uint8_t>((p[j + 4] >> 4) | ((p[j] >> 2) & 48U));
}

static constexpr void set_packed(PackedScales& packed, std::size_t j, unsigned scale, unsigned min) noexcept {
  std::uint8_t* p = packed.bytes;
  const auto put = [](std::uint8_t& byte, unsigned bits) { byte = static_cast<std::uint8_t>(byte | bits); };
  if (j < 4) {
    put(p[j], scale);
    put(p[j + 4], min);
  } else {
    put(p[j + 4], (scale & 15U) | ((min & 15U) << 4));
    put(p[j - 4], (scale >> 4) << 6);
    put(p[j], (min >> 4) << 6);
  }
}

/// Scales, minima and codes of a block of Q4_K or Q5_K.
struct AffineBlock {
  float d;     // a half's value
  float dmin;  // a half's value
  PackedScales scales;
  std::uint8_t q[256];  // 0..kMax
};

/// Every sub-block's own best scale and minimum, then the best near to them among the multiples that the block's d and
/// dmin allow. w may be null.
template <int kMax>
AffineBlock fit_affine_block(const float* x, const float* w) noexcept {
  constexpr std::size_t kSubBlocks = 8;
  constexpr std::size_t kN = 32;
  constexpr float kLargest = 63.0F;
  AffineFit fits[kSubBlocks];
  float largest_scale = 0.0F;
  float largest_min = 0.0F;
  for (std::size_t j = 0; j < kSubBlocks; ++j) {
    fits[j] = fit_affine<kN, kMax, Offsets::kNegative>(x + kN * j, weights_or_ones<kN>(w == nullptr ? w : w + kN * j));
    largest_scale = fits[j].scale > largest_scale ? fits[j].scale : largest_scale;
    largest_min = -fits[j].offset > largest_min ? -fits[j].offset : largest_min;
  }
  AffineBlock block{};
  block.d = base::half_to_float(base::float_to_half(largest_scale / kLargest));
  block.dmin = base::half_to_float(base::float_to_half(largest_min / kLargest));
  for (std::size_t j = 0; j < kSubBlocks; ++j) {
    const float* values = x + kN * j;
    const AffineCodes best = nearest_affine_codes<kN, kMax>(values, weights_or_ones<kN>(w == nullptr ? w : w + kN * j),
                                                            fits[j], {block.d, block.dmin}, 63);
    set_packed(block.scales, j, best.scale, best.min);
    const float inverse = inverse_or_zero(block.d * static_cast<float>(best.scale));
    const float min = block.dmin * static_cast<float>(best.min);
    for (std::size_t i = 0; i < kN; ++i) {
      block.q[kN * j + i] = truncate_to((values[i] + min) * inverse + 0.5F, kMax);
    }
  }
  return block;
}

/// Low nibbles of codes as Q4_K and Q5_K store them, [128].
static constexpr void store_low_nibbles(const std::uint8_t* codes, std::uint8_t* out) noexcept {
  for (std::size_t i = 0; i < 128; ++i) {
    const std::uint8_t* pair = codes + 64 * (i / 32) + i % 32;
    out[i] = static_cast<std::uint8_t>((pair[0] & 15U) | ((pair[32] & 15U) << 4));
  }
}

struct Q4_K {
  struct Block {
    std::uint8_t d[2];     // half
    std::uint8_t dmin[2];  // half
    PackedScales scales;
    std::uint8_t q[128];
  };
  static constexpr std::uint32_t kType = 12;
  static constexpr const char* kName = "Q4_K";
  static constexpr std::size_t kBlockLen = 256;
  static constexpr std::size_t kBlockBytes = sizeof(Block);
  static constexpr bool kIsWeight = true;
  static constexpr bool kInt8Input = true;
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMin = true;

  template <class V>
  static SubBlockMin<V> load(const std::uint8_t* row, std::size_t b) {
    const Block& block = reinterpret_cast<const Block*>(row)[b / 8];
    const std::size_t j = b % 8;
    const float d = V::half(block.d) * static_cast<float>(packed_scale(block.scales, j));
    const float m = V::half(block.dmin) * static_cast<float>(packed_min(block.scales, j));
    return {V::field(V::load_bytes(block.q + 32 * (j / 2)), static_cast<int>(4 * (j % 2)), 15), V::broadcast(d),
            V::broadcast(-m)};
  }

  template <class V>
  static ScaledMinValues<V> values(const std::uint8_t* row, std::size_t b) {
    const auto block = load<V>(row, b);
    return scaled_values<V>(block.q, block.d, block.m);
  }

  static void quantize(const float* x, const float* weight, std::uint8_t* out) noexcept {
    const AffineBlock found = fit_affine_block<15>(x, weight);
    Block& block = *reinterpret_cast<Block*>(out);
    store_half(found.d, block.d);
    store_half(found.dmin, block.dmin);
    block.scales = found.scales;
    store_low_nibbles(found.q, block.q);
  }
};

}  // namespace powerinfer::quant
