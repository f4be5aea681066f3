// y += h * row over listed rows, and dequantizing rows: both see a row as blocks of 32 exact float values.
#pragma once

#include "kernels/body/rows.h"
#include "kernels/kernel_table.h"
#include "quant/format.h"

namespace powerinfer::kernels::body {

/// A block's y: one fma per row and column, rows in order.
template <class V, class Format, std::size_t R>
void axpy_block(const std::uint8_t* const (&rows)[R], const typename V::F (&h)[R], std::size_t b, float* y) {
  constexpr std::size_t kParts = kBlock / V::kLanes;
  typename V::F acc[kParts];
  for (std::size_t k = 0; k < kParts; ++k) acc[k] = V::load(y + k * V::kLanes);
  for (std::size_t r = 0; r < R; ++r) {
    const auto values = Format::template values<V>(rows[r], b);
    for (std::size_t k = 0; k < kParts; ++k) acc[k] = V::fma(h[r], values.at(k), acc[k]);
  }
  for (std::size_t k = 0; k < kParts; ++k) V::store(y + k * V::kLanes, acc[k]);
}

/// R rows of the job, from position `first` of its list, added to all of y in one pass.
template <class V, class Format, std::size_t R>
void axpy_rows(const AxpyJob& job, std::size_t first) {
  const std::uint8_t* rows[R];
  const std::uint8_t* ahead[R];
  typename V::F h[R];
  for (std::size_t r = 0; r < R; ++r) {
    const std::size_t i = first + r;
    const std::size_t next = row_ahead<V>(i, R, job.n_rows, job.row_bytes);
    const std::size_t id = listed<V>(job.row_ids, i);
    rows[r] = job.rows + id * job.row_bytes;
    ahead[r] = job.rows + listed<V>(job.row_ids, next) * job.row_bytes;
    h[r] = V::broadcast(job.h[id]);
  }
  const std::size_t first_block = job.col_begin / kBlock;
  const std::size_t n_whole = job.n_cols / kBlock;
  for (std::size_t b = 0; b < n_whole; ++b) {
    for (std::size_t r = 0; r < R; ++r) prefetch_sub_block<V, Format>(ahead[r], first_block + b);
    axpy_block<V, Format, R>(rows, h, first_block + b, job.y + b * kBlock);
  }
  if constexpr (!Format::kInt8Input) {
    const std::size_t rest = job.n_cols % kBlock;
    if (rest == 0) return;
    std::uint8_t w_tail[R][kBlock * Format::kElementBytes] = {};
    float y_tail[kBlock] = {};
    const std::uint8_t* w_rows[R];
    for (std::size_t r = 0; r < R; ++r) {
      const std::uint8_t* from = rows[r] + (first_block + n_whole) * kBlock * Format::kElementBytes;
      for (std::size_t i = 0; i < rest * Format::kElementBytes; ++i) w_tail[r][i] = from[i];
      w_rows[r] = w_tail[r];
    }
    float* y = job.y + n_whole * kBlock;
    for (std::size_t i = 0; i < rest; ++i) y_tail[i] = y[i];
    axpy_block<V, Format, R>(w_rows, h, 0, y_tail);
    for (std::size_t i = 0; i < rest; ++i) y[i] = y_tail[i];
  }
}

template <class V, class Format>
void axpy(const AxpyJob& job) noexcept {
  std::size_t i = 0;
  for (; i + 4 <= job.n_rows; i += 4) axpy_rows<V, Format, 4>(job, i);
  for (; i < job.n_rows; ++i) axpy_rows<V, Format, 1>(job, i);
}

template <class V, class Format>
void dequantize(const std::uint8_t* row, std::size_t n, float* out) noexcept {
  const std::size_t n_whole = n / kBlock;
  for (std::size_t b = 0; b < n_whole; ++b) {
    const auto values = Format::template values<V>(row, b);
    for (std::size_t k = 0; k < kBlock / V::kLanes; ++k) V::store(out + b * kBlock + k * V::kLanes, values.at(k));
  }
  if constexpr (!Format::kInt8Input) {
    const std::size_t rest = n % kBlock;
    if (rest == 0) return;
    std::uint8_t tail[kBlock * Format::kElementBytes] = {};
    float values[kBlock];
    const std::uint8_t* from = row + n_whole * kBlock * Format::kElementBytes;
    for (std::size_t i = 0; i < rest * Format::kElementBytes; ++i) tail[i] = from[i];
    dequantize<V, Format>(tail, kBlock, values);
    for (std::size_t i = 0; i < rest; ++i) out[n_whole * kBlock + i] = values[i];
  }
}

}  // namespace powerinfer::kernels::body
