// The bytes of a whole file, read-only: mapped, or read into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/aligned_buffer.h"

namespace powerinfer::base {

class MappedFile {
 public:
  /// Maps the file. Throws InvalidArgument, naming the path and the reason, when it is not a readable regular file.
  /// The pages are read when touched; a file cut short by others while mapped is the caller's loss.
  static MappedFile map(const std::filesystem::path& path);
  /// Reads the file, or its first `max_bytes`, into memory aligned to 64 bytes. Throws as map() does, and
  /// OutOfMemoryError, naming the path, before anything is taken that the system does not have free.
  static MappedFile read(const std::filesystem::path& path,
                         std::size_t max_bytes = std::numeric_limits<std::size_t>::max());

  MappedFile() noexcept = default;
  MappedFile(MappedFile&& other) noexcept
      : mapping_(std::exchange(other.mapping_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        buffer_(std::move(other.buffer_)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(size_, other.size_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~MappedFile();

  /// [size()]; null for an empty file.
  const std::byte* data() const noexcept {
    return mapping_ != nullptr ? static_cast<const std::byte*>(mapping_) : buffer_.data();
  }
  std::size_t size() const noexcept { return size_; }

 private:
  /// The buffer of `n_bytes` for a file's contents. Throws as read() does.
  static AlignedBuffer allocate(const std::filesystem::path& path, std::size_t n_bytes);

  void* mapping_ = nullptr;
  std::size_t size_ = 0;
  AlignedBuffer buffer_;  // used when the file was read
};

}  // namespace powerinfer::base
