#include "base/aligned_buffer.h"

#include <cstdint>
#include <cstdlib>
#include <limits>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::base {

AlignedBuffer::AlignedBuffer(std::size_t n_bytes) {
  if (n_bytes == 0) return;
  // calloc and not aligned_alloc: it hands out fresh zero pages without writing to them, on every system.
  if (n_bytes <= std::numeric_limits<std::ptrdiff_t>::max() - kAlignment) block_ = std::calloc(n_bytes + kAlignment, 1);
  if (block_ == nullptr) {
    throw OutOfMemoryError(text("cannot allocate ", n_bytes, " bytes (", n_bytes >> 20,
                                " MiB); free some memory, or use a smaller context or model"));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(block_);
  data_ = static_cast<std::byte*>(block_) + (kAlignment - address % kAlignment);
  size_ = n_bytes;
}

AlignedBuffer::~AlignedBuffer() { std::free(block_); }

}  // namespace powerinfer::base
