// Mapped files and aligned buffers.
#include <cstring>

#include "base/aligned_buffer.h"
#include "base/mapped_file.h"
#include "gguf/temp_folder.h"
#include "powerinfer/error.h"
#include "test.h"

using namespace powerinfer;
using namespace pi_test;
using base::AlignedBuffer;
using base::MappedFile;

// The sanitizers' allocators end the process instead of returning null unless told otherwise.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace {

std::string contents(const MappedFile& file) { return {reinterpret_cast<const char*>(file.data()), file.size()}; }

}  // namespace

TEST(map_and_read_give_the_bytes_of_the_file) {
  const TempFolder folder;
  std::string bytes(100000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  write_file(folder / "file", bytes);
  CHECK(contents(MappedFile::map(folder / "file")) == bytes);
  const MappedFile read = MappedFile::read(folder / "file");
  CHECK(contents(read) == bytes);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(read.data()) % AlignedBuffer::kAlignment, std::uintptr_t{0});
}

TEST(files_move) {
  const TempFolder folder;
  write_file(folder / "a", "first");
  write_file(folder / "b", "second");
  MappedFile file = MappedFile::map(folder / "a");
  MappedFile taken = std::move(file);
  CHECK_EQ(contents(taken), std::string("first"));
  taken = MappedFile::read(folder / "b");
  CHECK_EQ(contents(taken), std::string("second"));
}

TEST(empty_file) {
  const TempFolder folder;
  write_file(folder / "empty", "");
  CHECK_EQ(MappedFile::map(folder / "empty").size(), std::size_t{0});
  CHECK_EQ(MappedFile::read(folder / "empty").size(), std::size_t{0});
}

TEST(unreadable_paths) {
  const TempFolder folder;
  const std::string absent = (folder / "absent").string();
  CHECK_THROWS(MappedFile::map(absent), InvalidArgument, absent + ": cannot open the file: ");
  CHECK_THROWS(MappedFile::read(absent), InvalidArgument, absent + ": cannot open the file: ");
  CHECK_THROWS(MappedFile::map(folder.path()), InvalidArgument, folder.path().string() + ": is a directory");
  CHECK_THROWS(MappedFile::read(folder.path()), InvalidArgument, "is a directory");
  write_file(folder / "file", "x");
  CHECK_THROWS(MappedFile::map(folder / "file/below"), InvalidArgument, "cannot open");
  CHECK_THROWS(MappedFile::map(""), InvalidArgument, "cannot open");
  if (std::filesystem::exists("/dev/null")) {
    CHECK_THROWS(MappedFile::map("/dev/null"), InvalidArgument, "not a regular file");
  }
}

TEST(buffers_are_zero_and_aligned) {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65}, std::size_t{1} << 22}) {
    AlignedBuffer buffer(n);
    CHECK_EQ(buffer.size(), n);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % AlignedBuffer::kAlignment, std::uintptr_t{0});
    std::size_t n_zero = 0;
    for (std::size_t i = 0; i < n; ++i) n_zero += buffer.data()[i] == std::byte{0};
    CHECK_EQ(n_zero, n);
    std::memset(buffer.data(), 1, n);
    AlignedBuffer moved = std::move(buffer);
    CHECK(moved.data()[n - 1] == std::byte{1});
  }
  CHECK(AlignedBuffer().data() == nullptr && AlignedBuffer(0).data() == nullptr);
}

TEST(buffers_that_are_too_large) {
  constexpr std::size_t kMax = ~std::size_t{0};
  CHECK_THROWS(AlignedBuffer(kMax), OutOfMemoryError, "18446744073709551615 bytes");
  CHECK_THROWS(AlignedBuffer(kMax / 2 + 1), OutOfMemoryError, "cannot allocate 9223372036854775808 bytes");
  CHECK_THROWS(AlignedBuffer(std::size_t{1} << 62), OutOfMemoryError, "cannot allocate 4611686018427387904 bytes");
}

TEST_MAIN()
