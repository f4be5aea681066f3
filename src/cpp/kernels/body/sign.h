// Scores of sign predictors: how many signs of a row and of the input agree, less how many differ.
#pragma once

#include "kernels/kernel_table.h"

namespace powerinfer::kernels::body {

/// A word of 4 or 8 bytes wherever it stands in memory.
template <class V, class Word>
std::uint64_t load_word(const std::uint8_t* p) {
  Word word;
  __builtin_memcpy(&word, p, sizeof(word));
  return word;
}

template <class V>
void sign_scores(const SignJob& job) noexcept {
  const auto* input = reinterpret_cast<const std::uint8_t*>(job.input);
  const std::size_t n_bytes = (job.n_cols + 31) / 32 * 4;
  for (std::size_t r = 0; r < job.n_rows; ++r) {
    const std::uint8_t* row = job.rows + r * job.row_bytes;
    int differ = 0;
    std::size_t at = 0;
    for (; at + 8 <= n_bytes; at += 8) {
      differ += __builtin_popcountll(load_word<V, std::uint64_t>(row + at) ^ load_word<V, std::uint64_t>(input + at));
    }
    if (at < n_bytes) {
      differ += __builtin_popcountll(load_word<V, std::uint32_t>(row + at) ^ load_word<V, std::uint32_t>(input + at));
    }
    job.out[r] = static_cast<float>(static_cast<int>(job.n_cols) - 2 * differ);
  }
}

}  // namespace powerinfer::kernels::body
