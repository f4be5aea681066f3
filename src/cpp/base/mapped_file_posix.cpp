#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>

#include "base/mapped_file.h"
#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::base {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const std::string reason = std::generic_category().message(errno);
  throw InvalidArgument(text(path.string(), ": cannot ", what, ": ", reason, "; check the path and its permissions"));
}

class Descriptor {
 public:
  // O_NONBLOCK so that a pipe is refused below and not waited for.
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail(path, "open the file");
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }

  int get() const { return fd_; }

  std::size_t size_of_regular_file(const std::filesystem::path& path) const {
    struct stat info{};
    if (::fstat(fd_, &info) != 0) fail(path, "examine the file");
    if (S_ISDIR(info.st_mode)) throw InvalidArgument(text(path.string(), ": is a directory; give the path of a file"));
    if (!S_ISREG(info.st_mode)) {
      throw InvalidArgument(text(path.string(), ": is not a regular file; copy its contents into one first"));
    }
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (size > std::numeric_limits<std::size_t>::max()) {
      throw InvalidArgument(text(path.string(), ": ", size, " bytes do not fit into this process's address space"));
    }
    return static_cast<std::size_t>(size);
  }

 private:
  int fd_;
};

}  // namespace

MappedFile MappedFile::map(const std::filesystem::path& path) {
  const Descriptor descriptor(path);
  MappedFile file;
  file.size_ = descriptor.size_of_regular_file(path);
  if (file.size_ == 0) return file;
  void* address = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (address == MAP_FAILED) fail(path, "map the file into memory");
  file.mapping_ = address;
  return file;
}

MappedFile MappedFile::read(const std::filesystem::path& path, std::size_t max_bytes) {
  const Descriptor descriptor(path);
  MappedFile file;
  file.size_ = std::min(descriptor.size_of_regular_file(path), max_bytes);
  file.buffer_ = allocate(path, file.size_);
  constexpr std::size_t kMaxChunk = std::size_t{1} << 30;  // a single read() is limited to 2 GiB
  for (std::size_t done = 0; done < file.size_;) {
    const ssize_t n = ::read(descriptor.get(), file.buffer_.data() + done, std::min(kMaxChunk, file.size_ - done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read the file");
    if (n == 0) {
      throw InvalidArgument(text(path.string(), ": the file shrank while it was read: expected ", file.size_,
                                 " bytes, got ", done, "; wait until it is complete"));
    }
    done += static_cast<std::size_t>(n);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size_);
}

}  // namespace powerinfer::base
