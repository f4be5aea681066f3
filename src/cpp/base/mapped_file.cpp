// The part of MappedFile that is the same on every system.
#include "base/mapped_file.h"

#include <cstdint>

#include "base/memory.h"
#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::base {

AlignedBuffer MappedFile::allocate(const std::filesystem::path& path, std::size_t n_bytes) {
  // Systems hand out more memory than they have and end processes that use it, so success of the allocation says
  // nothing.
  const std::uint64_t available = available_memory_bytes();
  if (available != 0 && n_bytes > available) {
    throw OutOfMemoryError(text(path.string(), ": reading the file takes ", n_bytes, " bytes (", n_bytes >> 20,
                                " MiB) of memory, available are ", available, " (", available >> 20,
                                " MiB); map it instead (weights 'mmap'), or free some memory"));
  }
  try {
    return AlignedBuffer(n_bytes);
  } catch (const OutOfMemoryError&) {
    throw OutOfMemoryError(text(path.string(), ": reading the file takes ", n_bytes, " bytes (", n_bytes >> 20,
                                " MiB) of memory, which cannot be allocated; map it instead (weights 'mmap'), or free "
                                "some memory"));
  }
}

}  // namespace powerinfer::base
