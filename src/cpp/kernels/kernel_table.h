// The table of compute kernels: one per instruction set, chosen once at run time. POD only: ISA units include this.
//
// All kernels are noexcept, never allocate and never check; ops validate first. Reduction orders are fixed per
// (row, token) pair: a value's bits never depend on how rows, tokens or blocks are grouped into jobs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace powerinfer::kernels {

inline constexpr std::size_t kBlock = 32;  ///< input rounding and skipping work in blocks of 32 columns
inline constexpr std::size_t kMaxDTypes = 11;

/// Input rows of a dot. Types with int8_input read q, d, sum; the others read f32. Token t starts at t * stride
/// (f32, q) and t * stride / 32 (d, sum). Rounding rule (batches of any size): d = max|x| / 127, id = 127 / max|x|
/// (0 where that is infinite), q = round half to even of x * id; sum = the block's integer sum. d is NaN if any x is
/// NaN or infinite, so that a broken model does not compute plausible numbers.
struct DotInput {
  const float* f32;         // [n_tokens, stride]
  const std::int8_t* q;     // [n_tokens, stride]
  const float* d;           // [n_tokens, stride / 32]
  const std::int32_t* sum;  // [n_tokens, stride / 32]
  std::size_t stride;       // a multiple of 32
};

/// out[row * out_row_stride + token * out_token_stride] = dot(row, token) for all listed rows and tokens.
struct DotJob {
  const std::uint8_t* rows;     // first row
  std::size_t row_bytes;        // distance of rows
  const std::int32_t* row_ids;  // [n_rows] rows to compute, null: 0 .. n_rows-1
  std::size_t n_rows;
  std::size_t n_cols;
  DotInput x;
  const std::int32_t* token_ids;  // [n_tokens], null: 0 .. n_tokens-1
  std::size_t n_tokens;
  const std::int32_t* block_ids;  // [n_blocks] ascending blocks of 32 columns to visit, null: all. Skipped blocks must
  std::size_t n_blocks;           // hold only zeros in x: the bits equal those of visiting all.
  float* out;                     // indexed by row id and token id
  std::size_t out_row_stride;
  std::size_t out_token_stride;
};

/// y[c] += sum over listed rows, in list order, of h[row id] * row[col_begin + c], as one fma chain per column.
struct AxpyJob {
  const std::uint8_t* rows;
  std::size_t row_bytes;
  const std::int32_t* row_ids;  // [n_rows], null: 0 .. n_rows-1
  std::size_t n_rows;
  std::size_t col_begin;  // a multiple of 32
  std::size_t n_cols;
  const float* h;  // indexed by row id
  float* y;        // [n_cols]; y[0] belongs to col_begin
};

/// out[r] = n_cols - 2 * popcount(row r XOR input): rows and input as sign bits, 32 to a word, pad bits 0.
struct SignJob {
  const std::uint8_t* rows;  // first row
  std::size_t row_bytes;     // distance of rows
  std::size_t n_rows;
  std::size_t n_cols;
  const std::uint32_t* input;
  float* out;  // [n_rows]
};

struct DTypeKernels {
  void (*dot)(const DotJob&) noexcept;
  void (*axpy)(const AxpyJob&) noexcept;
  void (*dequantize)(const std::uint8_t* row, std::size_t n, float* out) noexcept;
};

struct KernelTable {
  const char* name;                // "scalar", "avx2", ...
  DTypeKernels types[kMaxDTypes];  // by quant::dtype_index; null members for I32

  /// Rounds n values (ragged tail padded with zeros to a multiple of 32) by the rule of DotInput.
  void (*quantize_input)(const float* x, std::size_t n, std::int8_t* q, float* d, std::int32_t* sum) noexcept;

  /// y = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, std::size_t n, float eps, float* y) noexcept;
  /// y = (x - mean) / sqrt(var + eps) * weight + bias (bias may be null)
  void (*layer_norm)(const float* x, const float* weight, const float* bias, std::size_t n, float eps,
                     float* y) noexcept;
  void (*add)(const float* x, std::size_t n, float* y) noexcept;                 // y += x
  void (*scale)(float a, std::size_t n, float* y) noexcept;                      // y *= a
  float (*max)(const float* x, std::size_t n) noexcept;                          // n > 0
  float (*exp_sum)(float max, std::size_t n, float* x) noexcept;                 // x = exp(x - max); returns the sum
  void (*silu)(std::size_t n, float* x) noexcept;                                // x = x / (1 + exp(-x))
  void (*gelu_tanh)(std::size_t n, float* x) noexcept;                           // tanh form
  void (*mul)(const float* x, std::size_t n, float* y) noexcept;                 // y *= x
  void (*f32_to_f16)(const float* x, std::size_t n, std::uint16_t* y) noexcept;  // round half to even
  void (*sign_scores)(const SignJob&) noexcept;
};

}  // namespace powerinfer::kernels
