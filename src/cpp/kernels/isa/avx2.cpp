// AVX2 + FMA + F16C: eight lanes. The operations are those of quant/scalar.h.
#include <immintrin.h>

#include "base/half.h"
#include "kernels/body/table.h"

namespace powerinfer::kernels {
namespace {

struct Avx2 {
  static constexpr std::size_t kLanes = 8;
  using F = __m256;
  using I = __m256i;
  using Bytes = __m256i;
  using Sum = __m256i;  // eight partial sums, the first four of columns 0..15
  struct D {
    __m256d lo;
    __m256d hi;
  };
  /// Each half of the 32 bytes in both 128-bit lanes, so that bytes can be moved to any place within them.
  struct Spread {
    __m256i lo;
    __m256i hi;
  };

  static F zero() { return _mm256_setzero_ps(); }
  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static I part_mask(std::size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F load_part(const float* p, std::size_t n) { return _mm256_maskload_ps(p, part_mask(n)); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store_part(float* p, std::size_t n, F x) { _mm256_maskstore_ps(p, part_mask(n), x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F abs(F a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF))); }
  static float sum(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float max_of(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static I as_int(F a) { return _mm256_castps_si256(a); }
  static F as_float(I a) { return _mm256_castsi256_ps(a); }
  static I int_broadcast(std::int32_t a) { return _mm256_set1_epi32(a); }
  static I int_add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I int_sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I shift_left_23(I a) { return _mm256_slli_epi32(a, 23); }
  static I half_of(I a) { return _mm256_srai_epi32(a, 1); }

  static D double_zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static __m256d low_doubles(F a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
  static __m256d high_doubles(F a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
  static D double_add(D acc, F a) {
    return {_mm256_add_pd(acc.lo, low_doubles(a)), _mm256_add_pd(acc.hi, high_doubles(a))};
  }
  static D double_add_square(D acc, F a, double shift) {
    const __m256d lo = _mm256_sub_pd(low_doubles(a), _mm256_set1_pd(shift));
    const __m256d hi = _mm256_sub_pd(high_doubles(a), _mm256_set1_pd(shift));
    return {_mm256_fmadd_pd(lo, lo, acc.lo), _mm256_fmadd_pd(hi, hi, acc.hi)};
  }
  static double double_sum(D a) {
    const __m256d both = _mm256_add_pd(a.lo, a.hi);
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(both), _mm256_extractf128_pd(both, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
  }
  static double root(double a) { return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(a))); }

  static std::uint16_t load_u16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }
  static __m128i load_16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static F load_f32(const std::uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_f16(const std::uint8_t* p) { return _mm256_cvtph_ps(load_16(p)); }
  static F load_bf16(const std::uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p)), 16));
  }
  static void store_f16(std::uint16_t* p, F a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static float half(const std::uint8_t* p) { return _cvtsh_ss(load_u16(p)); }
  static F broadcast_half(const std::uint8_t* p) {
    return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(load_u16(p))));
  }

  static Bytes load_bytes(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Bytes load_nibbles(const std::uint8_t* p) {
    const __m256i twice = _mm256_broadcastsi128_si256(load_16(p));
    const __m256i both = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
  }
  static Bytes bits(const std::uint8_t* p, std::uint8_t value) {
    const auto word = static_cast<std::uint32_t>(load_u16(p)) | static_cast<std::uint32_t>(load_u16(p + 2)) << 16;
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(word)), which);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(value)));
  }
  static Bytes field(Bytes a, int shift, std::uint8_t mask) {
    return _mm256_and_si256(_mm256_srl_epi16(a, _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(static_cast<char>(mask)));
  }
  static Bytes times16(Bytes a) { return _mm256_slli_epi16(a, 4); }
  static Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
  static Bytes minus(Bytes a, std::int8_t b) { return _mm256_sub_epi8(a, _mm256_set1_epi8(b)); }

  static Spread spread(Bytes a) {
    return {_mm256_permute2x128_si256(a, a, 0x00), _mm256_permute2x128_si256(a, a, 0x11)};
  }
  /// Bytes in the top of each integer: they convert with their sign, times 2^24, which spread_scale takes back exactly.
  static F spread_at(const Spread& a, std::size_t k) {
    const char z = -128;
    const __m256i first = _mm256_setr_epi8(z, z, z, 0, z, z, z, 1, z, z, z, 2, z, z, z, 3,  //
                                           z, z, z, 4, z, z, z, 5, z, z, z, 6, z, z, z, 7);
    const __m256i second = _mm256_setr_epi8(z, z, z, 8, z, z, z, 9, z, z, z, 10, z, z, z, 11,  //
                                            z, z, z, 12, z, z, z, 13, z, z, z, 14, z, z, z, 15);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(k < 2 ? a.lo : a.hi, k % 2 == 0 ? first : second));
  }
  static F spread_scale(F d) { return _mm256_mul_ps(d, _mm256_set1_ps(5.9604644775390625e-8F)); }

  /// Pairs of products fit 16 bits: |w| <= 128 and |x| <= 127.
  static Sum dot_signed(Bytes w, Bytes x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  static Sum dot_unsigned(Bytes w, Bytes x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
  }
  static Sum single(std::int32_t a) { return _mm256_zextsi128_si256(_mm_cvtsi32_si128(a)); }
  static Sum sum_minus(Sum a, Sum b) { return _mm256_sub_epi32(a, b); }
  static F add_scaled(F acc, Sum a, F d) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), d, acc); }
  static F add_scaled(F acc, Sum a, const quant::ScalePair<Avx2>& d) {
    return add_scaled(acc, a, _mm256_blend_ps(d.lo, d.hi, 0xF0));
  }

  static std::int32_t round_to_int8(const float* x, F id, std::int8_t* q) {
    __m256i parts[4];
    for (std::size_t k = 0; k < 4; ++k) {
      const F scaled = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * k), id);
      // The bounds also turn NaN into a number.
      const F bounded = _mm256_min_ps(_mm256_max_ps(scaled, _mm256_set1_ps(-127.0F)), _mm256_set1_ps(127.0F));
      parts[k] = _mm256_cvtps_epi32(bounded);
    }
    const __m256i low = _mm256_packs_epi32(parts[0], parts[1]);
    const __m256i high = _mm256_packs_epi32(parts[2], parts[3]);
    // Packing works within 128-bit lanes: put the groups of four bytes back in order.
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
    const __m256i total = _mm256_add_epi32(_mm256_add_epi32(parts[0], parts[1]), _mm256_add_epi32(parts[2], parts[3]));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
  }

  static void prefetch(const std::uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace

extern const KernelTable kAvx2Table;
const KernelTable kAvx2Table = body::make_table<Avx2>("avx2");

}  // namespace powerinfer::kernels
