// Dots of weight rows with input rows, for every format and instruction set. A (row, token) pair has one accumulator
// and one order of operations, whichever tile it falls into: tiles only share loads.
#pragma once

#include "kernels/body/rows.h"
#include "kernels/kernel_table.h"
#include "quant/format.h"

namespace powerinfer::kernels::body {

/// The blocks to visit as runs [begin, end): one run when all are visited, so that the inner loop has no list.
/// (A template like all here, so that each instruction set has its own.)
template <class V>
struct BlockRuns {
  const std::int32_t* ids;  // null: all
  std::size_t n;
  std::size_t done = 0;

  bool next(std::size_t& begin, std::size_t& end) {
    if (done == n) return false;
    if (ids == nullptr) {
      begin = 0;
      end = done = n;
      return true;
    }
    begin = static_cast<std::size_t>(ids[done]);
    end = begin + 1;
    ++done;
    while (done < n && static_cast<std::size_t>(ids[done]) == end) {
      ++end;
      ++done;
    }
    return true;
  }
};

/// One job's view for tiles of R rows and T tokens.
template <std::size_t R, std::size_t T>
struct Tile {
  const std::uint8_t* rows[R];
  const std::uint8_t* ahead[R];  // rows to prefetch meanwhile
  float* out[R][T];
  std::size_t tokens[T];
};

/// A weight's scale, or pair of scales, times the input's.
template <class V>
typename V::F scale_product(typename V::F w, typename V::F x) {
  return V::mul(w, x);
}
template <class V>
quant::ScalePair<V> scale_product(const quant::ScalePair<V>& w, typename V::F x) {
  return {V::mul(w.lo, x), V::mul(w.hi, x)};
}

/// acc + the dot of a sub-block with 32 rounded inputs, their scale and sum.
template <class V, class Format, class Weights>
typename V::F add_block(typename V::F acc, const Weights& w, const std::uint8_t* xq, float xd, std::int32_t xsum) {
  const typename V::Bytes x = V::load_bytes(xq);
  const typename V::F d = V::broadcast(xd);
  typename V::Sum sum;
  if constexpr (Format::kSigned) {
    sum = V::dot_signed(w.q, x);
  } else {
    sum = V::dot_unsigned(w.q, x);
  }
  if constexpr (Format::kOffset != 0) sum = V::sum_minus(sum, V::single(xsum * Format::kOffset));
  acc = V::add_scaled(acc, sum, scale_product<V>(w.d, d));
  if constexpr (Format::kHasMin) acc = V::add_scaled(acc, V::single(xsum), scale_product<V>(w.m, d));
  return acc;
}

/// Tile of a format whose dot meets the int8-rounded input.
template <class V, class Format, std::size_t R, std::size_t T>
void dot_tile_int8(const DotJob& job, BlockRuns<V> runs, const Tile<R, T>& tile) {
  typename V::F acc[R][T];
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t t = 0; t < T; ++t) acc[r][t] = V::zero();
  }
  const std::uint8_t* xq[T];
  const float* xd[T];
  const std::int32_t* xsum[T];
  for (std::size_t t = 0; t < T; ++t) {
    const std::size_t first = tile.tokens[t] * job.x.stride;
    xq[t] = reinterpret_cast<const std::uint8_t*>(job.x.q) + first;
    xd[t] = job.x.d + first / kBlock;
    xsum[t] = job.x.sum + first / kBlock;
  }
  std::size_t begin = 0;
  std::size_t end = 0;
  while (runs.next(begin, end)) {
    for (std::size_t b = begin; b < end; ++b) {
      // Row by row, so that few vectors are alive at a time.
      for (std::size_t r = 0; r < R; ++r) {
        const auto w = Format::template load<V>(tile.rows[r], b);
        prefetch_sub_block<V, Format>(tile.ahead[r], b);
        for (std::size_t t = 0; t < T; ++t) {
          acc[r][t] = add_block<V, Format>(acc[r][t], w, xq[t] + b * kBlock, xd[t][b], xsum[t][b]);
        }
      }
    }
  }
  for (std::size_t r = 0; r < R; ++r) {
    // + 0: a sum of nothing but zeros is +0, whether or not zero blocks were visited.
    for (std::size_t t = 0; t < T; ++t) *tile.out[r][t] = V::sum(acc[r][t]) + 0.0F;
  }
}

/// Adds one block of 32 columns to the accumulators of a tile over f32 input.
template <class V, class Format, std::size_t R, std::size_t T>
void dot_block_float(const std::uint8_t* const (&rows)[R], const float* const (&x)[T], std::size_t b,
                     typename V::F (&acc)[R][T]) {
  for (std::size_t k = 0; k < kBlock / V::kLanes; ++k) {
    typename V::F w[R];
    for (std::size_t r = 0; r < R; ++r) w[r] = Format::template values<V>(rows[r], b).at(k);
    for (std::size_t t = 0; t < T; ++t) {
      const typename V::F xk = V::load(x[t] + b * kBlock + k * V::kLanes);
      for (std::size_t r = 0; r < R; ++r) acc[r][t] = V::fma(w[r], xk, acc[r][t]);
    }
  }
}

/// Tile of a format whose dot meets the f32 input. A last block of less than 32 columns is padded with zeros.
template <class V, class Format, std::size_t R, std::size_t T>
void dot_tile_float(const DotJob& job, BlockRuns<V> runs, const Tile<R, T>& tile) {
  typename V::F acc[R][T];
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t t = 0; t < T; ++t) acc[r][t] = V::zero();
  }
  const float* x[T];
  for (std::size_t t = 0; t < T; ++t) x[t] = job.x.f32 + tile.tokens[t] * job.x.stride;

  const std::size_t n_whole = job.n_cols / kBlock;
  bool has_tail = false;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (runs.next(begin, end)) {
    if (end > n_whole) {
      has_tail = true;
      end = n_whole;
    }
    for (std::size_t b = begin; b < end; ++b) {
      for (std::size_t r = 0; r < R; ++r) prefetch_sub_block<V, Format>(tile.ahead[r], b);
      dot_block_float<V, Format, R, T>(tile.rows, x, b, acc);
    }
  }
  if (has_tail) {
    const std::size_t rest = job.n_cols % kBlock;
    std::uint8_t w_tail[R][kBlock * Format::kElementBytes] = {};
    float x_tail[T][kBlock] = {};
    const std::uint8_t* w_rows[R];
    const float* x_rows[T];
    for (std::size_t r = 0; r < R; ++r) {
      const std::uint8_t* from = tile.rows[r] + n_whole * kBlock * Format::kElementBytes;
      for (std::size_t i = 0; i < rest * Format::kElementBytes; ++i) w_tail[r][i] = from[i];
      w_rows[r] = w_tail[r];
    }
    for (std::size_t t = 0; t < T; ++t) {
      for (std::size_t i = 0; i < rest; ++i) x_tail[t][i] = x[t][n_whole * kBlock + i];
      x_rows[t] = x_tail[t];
    }
    dot_block_float<V, Format, R, T>(w_rows, x_rows, 0, acc);
  }
  for (std::size_t r = 0; r < R; ++r) {
    // + 0: as above.
    for (std::size_t t = 0; t < T; ++t) *tile.out[r][t] = V::sum(acc[r][t]) + 0.0F;
  }
}

/// Rows first_row .. + R of the job by all its tokens, T at a time, then one at a time.
template <class V, class Format, std::size_t R, std::size_t T>
std::size_t dot_rows_by_tokens(const DotJob& job, std::size_t first_row, std::size_t first_token) {
  const std::size_t n_blocks = (job.n_cols + kBlock - 1) / kBlock;
  const BlockRuns<V> runs{job.block_ids, job.block_ids == nullptr ? n_blocks : job.n_blocks};
  Tile<R, T> tile;
  std::size_t row_ids[R];
  for (std::size_t r = 0; r < R; ++r) {
    const std::size_t i = first_row + r;
    const std::size_t next = row_ahead<V>(i, R, job.n_rows, job.row_bytes);
    row_ids[r] = listed<V>(job.row_ids, i);
    tile.rows[r] = job.rows + row_ids[r] * job.row_bytes;
    tile.ahead[r] = job.rows + listed<V>(job.row_ids, next) * job.row_bytes;
  }
  std::size_t token = first_token;
  for (; token + T <= job.n_tokens; token += T) {
    for (std::size_t t = 0; t < T; ++t) {
      tile.tokens[t] = listed<V>(job.token_ids, token + t);
      for (std::size_t r = 0; r < R; ++r) {
        tile.out[r][t] = job.out + row_ids[r] * job.out_row_stride + tile.tokens[t] * job.out_token_stride;
      }
    }
    if constexpr (Format::kInt8Input) {
      dot_tile_int8<V, Format, R, T>(job, runs, tile);
    } else {
      dot_tile_float<V, Format, R, T>(job, runs, tile);
    }
  }
  return token;
}

template <class V, class Format>
void dot(const DotJob& job) noexcept {
  constexpr std::size_t kTokens = 4;  // with two rows: 8 accumulators, the weights unpacked once per 4 tokens
  std::size_t row = 0;
  for (; row + 4 <= job.n_rows; row += 4) {
    std::size_t token = 0;
    if (job.n_tokens >= kTokens) {
      dot_rows_by_tokens<V, Format, 2, kTokens>(job, row, 0);
      token = dot_rows_by_tokens<V, Format, 2, kTokens>(job, row + 2, 0);
    }
    dot_rows_by_tokens<V, Format, 4, 1>(job, row, token);
  }
  for (; row < job.n_rows; ++row) {
    const std::size_t token = dot_rows_by_tokens<V, Format, 1, kTokens>(job, row, 0);
    dot_rows_by_tokens<V, Format, 1, 1>(job, row, token);
  }
}

}  // namespace powerinfer::kernels::body
