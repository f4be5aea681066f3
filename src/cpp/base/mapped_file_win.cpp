#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <system_error>

#include "base/mapped_file.h"
#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::base {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const std::string reason = std::system_category().message(static_cast<int>(::GetLastError()));
  throw InvalidArgument(text(path.string(), ": cannot ", what, ": ", reason, "; check the path and its permissions"));
}

class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle_ != nullptr && handle_ != INVALID_HANDLE_VALUE) ::CloseHandle(handle_);
  }
  HANDLE get() const { return handle_; }

 private:
  HANDLE handle_;
};

HANDLE open_file(const std::filesystem::path& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    throw InvalidArgument(text(path.string(), ": is a directory; give the path of a file"));
  }
  const DWORD sharing = FILE_SHARE_READ | FILE_SHARE_DELETE;
  HANDLE handle =
      ::CreateFileW(path.c_str(), GENERIC_READ, sharing, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle == INVALID_HANDLE_VALUE) fail(path, "open the file");
  return handle;
}

std::size_t size_of_regular_file(HANDLE handle, const std::filesystem::path& path) {
  if (::GetFileType(handle) != FILE_TYPE_DISK) {
    throw InvalidArgument(text(path.string(), ": is not a regular file; copy its contents into one first"));
  }
  LARGE_INTEGER size{};
  if (!::GetFileSizeEx(handle, &size)) fail(path, "examine the file");
  const auto n_bytes = static_cast<std::uint64_t>(size.QuadPart);
  if (n_bytes > std::numeric_limits<std::size_t>::max()) {
    throw InvalidArgument(text(path.string(), ": ", n_bytes, " bytes do not fit into this process's address space"));
  }
  return static_cast<std::size_t>(n_bytes);
}

}  // namespace

MappedFile MappedFile::map(const std::filesystem::path& path) {
  const Handle handle(open_file(path));
  MappedFile file;
  file.size_ = size_of_regular_file(handle.get(), path);
  if (file.size_ == 0) return file;
  const Handle mapping(::CreateFileMappingW(handle.get(), nullptr, PAGE_READONLY, 0, 0, nullptr));
  if (mapping.get() == nullptr) fail(path, "map the file into memory");
  file.mapping_ = ::MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, 0);  // the view keeps the mapping alive
  if (file.mapping_ == nullptr) fail(path, "map the file into memory");
  return file;
}

MappedFile MappedFile::read(const std::filesystem::path& path, std::size_t max_bytes) {
  const Handle handle(open_file(path));
  MappedFile file;
  file.size_ = std::min(size_of_regular_file(handle.get(), path), max_bytes);
  file.buffer_ = allocate(path, file.size_);
  constexpr std::size_t kMaxChunk = std::size_t{1} << 30;  // a single ReadFile takes a 32-bit count
  for (std::size_t done = 0; done < file.size_;) {
    DWORD n = 0;
    const auto wanted = static_cast<DWORD>(std::min(kMaxChunk, file.size_ - done));
    if (!::ReadFile(handle.get(), file.buffer_.data() + done, wanted, &n, nullptr)) fail(path, "read the file");
    if (n == 0) {
      throw InvalidArgument(text(path.string(), ": the file shrank while it was read: expected ", file.size_,
                                 " bytes, got ", done, "; wait until it is complete"));
    }
    done += n;
  }
  return file;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) ::UnmapViewOfFile(mapping_);
}

}  // namespace powerinfer::base
