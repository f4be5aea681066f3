// Where rows and blocks are, and which to prefetch: shared by dot and axpy.
#pragma once

#include "kernels/kernel_table.h"

namespace powerinfer::kernels::body {

/// What a prefetch runs ahead. Memory answers in about 100 ns, in which a core computes 2 to 4 KB of rows; twice that
/// measured best from 4 to 16 KB on one machine (Zen 5, rows of 576 to 4352 bytes).
inline constexpr std::size_t kPrefetchBytes = 8192;

/// The i-th entry of a list; without one, i itself. (Templates over V like all here, so that each instruction set has
/// its own.)
template <class V>
std::size_t listed(const std::int32_t* ids, std::size_t i) {
  return ids == nullptr ? i : static_cast<std::size_t>(ids[i]);
}

/// The place in the list of the row to prefetch while the one at place i is computed in a group of `group` rows.
template <class V>
std::size_t row_ahead(std::size_t i, std::size_t group, std::size_t n_rows, std::size_t row_bytes) {
  const std::size_t n_groups = kPrefetchBytes / (group * row_bytes) + 1;
  const std::size_t next = i + n_groups * group;
  return next < n_rows ? next : i;
}

/// Where sub-block b begins in a row, in bytes; within a longer block, about.
template <class V, class Format>
std::size_t sub_block_begin(std::size_t b) {
  if constexpr (Format::kBlockLen <= kBlock) {
    return b * (kBlock / Format::kBlockLen * Format::kBlockBytes);
  } else {
    return b * Format::kBlockBytes / (Format::kBlockLen / kBlock);
  }
}

/// Prefetches sub-block b of a row.
template <class V, class Format>
void prefetch_sub_block(const std::uint8_t* row, std::size_t b) {
  const std::size_t n_bytes = kBlock * Format::kBlockBytes / Format::kBlockLen;
  const std::uint8_t* begin = row + sub_block_begin<V, Format>(b);
  for (std::size_t line = 0; line < n_bytes; line += 64) V::prefetch(begin + line);
}

}  // namespace powerinfer::kernels::body
