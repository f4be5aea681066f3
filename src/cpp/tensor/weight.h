// How weights reach kernels: a view of typed rows with a layout tag. Packed, cold or device copies are other views.
#pragma once

#include <cstddef>
#include <cstdint>

#include "powerinfer/gguf.h"

namespace powerinfer {

enum class Layout : std::uint8_t {
  kRows,  ///< GGUF's own: rows one after another, blocks as in the file
};

/// A matrix of n_rows rows of n_cols values. Does not own its bytes. data == nullptr: absent.
struct WeightView {
  const std::uint8_t* data = nullptr;
  DType type = DType::kF32;
  Layout layout = Layout::kRows;
  std::size_t n_rows = 0;
  std::size_t n_cols = 0;
  std::size_t row_bytes = 0;

  explicit operator bool() const { return data != nullptr; }
  std::size_t n_bytes() const { return n_rows * row_bytes; }
  const std::uint8_t* row(std::size_t index) const { return data + index * row_bytes; }
};

}  // namespace powerinfer
