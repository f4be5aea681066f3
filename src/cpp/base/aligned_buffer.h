// Large, zero-initialised allocations aligned to a cache line: KV cache, scratch, files read whole.
#pragma once

#include <cstddef>
#include <utility>

namespace powerinfer::base {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  AlignedBuffer() noexcept = default;
  /// Throws OutOfMemoryError, naming the bytes. Pages are touched only when used; 0 bytes allocate nothing.
  explicit AlignedBuffer(std::size_t n_bytes);
  ~AlignedBuffer();

  AlignedBuffer(AlignedBuffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::byte* data() noexcept { return data_; }
  const std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  void* block_ = nullptr;      // what the allocator gave
  std::byte* data_ = nullptr;  // [size_], the first aligned byte of it
  std::size_t size_ = 0;
};

}  // namespace powerinfer::base
