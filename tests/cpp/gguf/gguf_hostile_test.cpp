// Files that are wrong in one field each: every one must give a typed error that names the file, without a large
// allocation on the way.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>

#include "base/memory.h"
#include "gguf/raw_file.h"
#include "gguf/temp_folder.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"
#include "test.h"

namespace {
std::atomic<std::size_t> largest_allocation{0};

void* counted(std::size_t n) {
  std::size_t seen = largest_allocation.load();
  while (seen < n && !largest_allocation.compare_exchange_weak(seen, n)) {
  }
  if (void* block = std::malloc(n == 0 ? 1 : n)) return block;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t n) { return counted(n); }
void* operator new[](std::size_t n) { return counted(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  try {
    return counted(n);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

using namespace powerinfer;
using namespace pi_test;

namespace {

enum class Expect { kFormat, kUnsupported };

struct Hostile {
  const char* name;
  Expect expect;
  const char* message;  // part of it
  std::function<std::string(RawFile)> bytes;
};

constexpr std::uint64_t kMax = ~std::uint64_t{0};

/// A value in the place of entry 1 ("a.u32").
std::function<std::string(RawFile)> value(std::string content) {
  return [content = std::move(content)](RawFile file) {
    file.entries[1].value = content;
    return file.bytes();
  };
}

std::function<std::string(RawFile)> changed(std::function<void(RawFile&)> change) {
  return [change = std::move(change)](RawFile file) {
    change(file);
    return file.bytes();
  };
}

std::function<std::string(RawFile)> with_tensor(std::size_t index, RawTensor replacement) {
  return changed([=](RawFile& file) { file.tensors[index] = replacement; });
}

std::function<std::string(RawFile)> with_alignment(std::string content) {
  return changed([=](RawFile& file) { file.entries[1] = {text("general.alignment"), content}; });
}

std::vector<Hostile> header_cases() {
  return {
      {"empty file", Expect::kFormat, "empty", [](RawFile) { return std::string(); }},
      {"three bytes", Expect::kFormat, "magic", [](RawFile) { return std::string("GGU"); }},
      {"wrong magic", Expect::kFormat, "expected the magic bytes 'GGUF' or 'PWRI', got 'GGXF'",
       changed([](RawFile& f) { f.magic = "GGXF"; })},
      {"binary magic", Expect::kFormat, "\\xff\\x00",
       changed([](RawFile& f) { f.magic = std::string("\xFF\0\0\0", 4); })},
      {"Git LFS pointer", Expect::kFormat, "git lfs pull",
       [](RawFile) { return std::string("version https://git-lfs"); }},
      {"zip file", Expect::kFormat, "PyTorch", [](RawFile) { return std::string("PK\x03\x04 and more"); }},
      {"web page", Expect::kFormat, "web page", [](RawFile) { return std::string("<!DOCTYPE html>"); }},
      {"format from before GGUF", Expect::kFormat, "before GGUF", changed([](RawFile& f) { f.magic = "tjgg"; })},
      {"no version", Expect::kFormat, "version", [](RawFile) { return std::string("GGUF\3"); }},
      {"version 0", Expect::kFormat, "got 0", changed([](RawFile& f) { f.version = u32(0); })},
      {"version 1", Expect::kUnsupported, "version 2 or 3, got 1", changed([](RawFile& f) { f.version = u32(1); })},
      {"version 4", Expect::kUnsupported, "got 4", changed([](RawFile& f) { f.version = u32(4); })},
      {"big-endian", Expect::kUnsupported, "version 0x3000000: the file is big-endian",
       changed([](RawFile& f) { f.version = u32(0x03000000); })},
      {"header cut in the counts", Expect::kFormat, "the file ends inside number of tensors",
       [](RawFile f) { return f.bytes().substr(0, 15); }},
      {"2^64 - 1 tensors", Expect::kFormat, "number of tensors", changed([](RawFile& f) { f.n_tensors = kMax; })},
      {"2^63 tensors", Expect::kFormat, "number of tensors", changed([](RawFile& f) { f.n_tensors = 1ULL << 63; })},
      {"more tensors than bytes", Expect::kFormat, "number of tensors",
       changed([](RawFile& f) { f.n_tensors = f.bytes().size() / 33 + 1; })},
      {"one tensor too many", Expect::kFormat, "tensor 4 of 4", changed([](RawFile& f) { f.n_tensors = 4; })},
      {"2^64 - 1 entries", Expect::kFormat, "number of metadata entries",
       changed([](RawFile& f) { f.n_entries = kMax; })},
      {"2^32 entries", Expect::kFormat, "number of metadata entries",
       changed([](RawFile& f) { f.n_entries = 1ULL << 32; })},
      {"one entry too many", Expect::kFormat, "", changed([](RawFile& f) { f.n_entries = 7; })},
      {"one entry too few", Expect::kFormat, "", changed([](RawFile& f) { f.n_entries = 5; })},
  };
}

std::vector<Hostile> metadata_cases() {
  const std::string array = u32(9);
  return {
      {"empty key", Expect::kFormat, "the key is empty", changed([](RawFile& f) { f.entries[1].key = text(""); })},
      {"key with a zero byte", Expect::kFormat, "zero byte",
       changed([](RawFile& f) { f.entries[1].key = text(std::string("a\0b", 3)); })},
      {"key of 65536 bytes", Expect::kFormat, "too long",
       changed([](RawFile& f) { f.entries[1].key = text(std::string(65536, 'k')); })},
      {"key longer than the file", Expect::kFormat, "the key",
       changed([](RawFile& f) { f.entries[1].key = u64(100000) + "a"; })},
      {"key of 2^64 - 1 bytes", Expect::kFormat, "the key",
       changed([](RawFile& f) { f.entries[1].key = u64(kMax) + "a"; })},
      {"key twice", Expect::kFormat, "'a.bool' twice", changed([](RawFile& f) { f.entries[1].key = text("a.bool"); })},
      {"value type 13", Expect::kFormat, "key 'a.u32': value type", value(u32(13) + u32(1))},
      {"value type 2^32 - 1", Expect::kFormat, "got 4294967295", value(u32(kMax))},
      {"bool of 2", Expect::kFormat, "expected a bool (0 or 1), got 2", value(u32(7) + u8(2))},
      {"bool of 255 in an array", Expect::kFormat, "got 255", value(array + u32(7) + u64(2) + u8(1) + u8(255))},
      {"string longer than the file", Expect::kFormat, "key 'a.u32'", value(u32(8) + u64(5000) + "short")},
      {"string of 2^63 bytes", Expect::kFormat, "truncated", value(u32(8) + u64(1ULL << 63) + "short")},
      {"string of 2^64 - 1 bytes", Expect::kFormat, "truncated", value(u32(8) + u64(kMax) + "short")},
      {"array of arrays", Expect::kUnsupported, "arrays of arrays",
       value(array + u32(9) + u64(1) + u32(4) + u64(1) + u32(1))},
      {"array of type 13", Expect::kFormat, "array element type", value(array + u32(13) + u64(1) + u32(1))},
      {"array of 2^64 - 1 bytes", Expect::kFormat, "number of array elements", value(array + u32(0) + u64(kMax))},
      {"array whose bytes overflow 64 bits", Expect::kFormat, "number of array elements",
       value(array + u32(10) + u64((1ULL << 61) + 1))},
      {"array longer than the file", Expect::kFormat, "number of array elements", value(array + u32(4) + u64(1000))},
      {"array of 2^60 strings", Expect::kFormat, "number of array elements", value(array + u32(8) + u64(1ULL << 60))},
      {"array of strings, one too long", Expect::kFormat, "the array",
       value(array + u32(8) + u64(2) + text("x") + u64(1ULL << 40) + "y")},
      {"array of bools longer than the file", Expect::kFormat, "number of array elements",
       value(array + u32(7) + u64(100000))},
      {"cut inside an array", Expect::kFormat, "",
       [](RawFile f) { return f.bytes().substr(0, f.bytes().find("a.floats") + 24); }},
      {"cut inside a key", Expect::kFormat, "the key",
       [](RawFile f) { return f.bytes().substr(0, f.bytes().find("a.strings") + 3); }},
      {"alignment 0", Expect::kFormat, "power of two", with_alignment(u32(4) + u32(0))},
      {"alignment 3", Expect::kFormat, "power of two from 8", with_alignment(u32(4) + u32(3))},
      {"alignment 24", Expect::kFormat, "got 24", with_alignment(u32(4) + u32(24))},
      {"alignment 1", Expect::kFormat, "got 1", with_alignment(u32(4) + u32(1))},
      {"alignment 2^31", Expect::kFormat, "to 1048576, got 2147483648", with_alignment(u32(4) + u32(1ULL << 31))},
      {"alignment as a string", Expect::kFormat, "expected u32, got string", with_alignment(u32(8) + text("32"))},
      {"alignment as an array", Expect::kFormat, "got array of u32",
       with_alignment(u32(9) + u32(4) + u64(1) + u32(32))},
  };
}

std::vector<Hostile> tensor_cases() {
  const auto name = [](const std::string& bytes) { return changed([=](RawFile& f) { f.tensors[0].name = bytes; }); };
  return {
      {"empty tensor name", Expect::kFormat, "the name is empty", name(text(""))},
      {"tensor name with a zero byte", Expect::kFormat, "zero byte", name(text(std::string("a\0.weight", 9)))},
      {"tensor name of 256 bytes", Expect::kFormat, "too long", name(text(std::string(256, 'n')))},
      {"tensor name longer than the file", Expect::kFormat, "tensor 1 of 3: the file ends inside the name",
       name(u64(9999) + "n")},
      {"tensor name of 2^64 - 1 bytes", Expect::kFormat, "the name", name(u64(kMax) + "n")},
      {"tensor twice", Expect::kFormat, "'second.weight' twice", name(text("second.weight"))},
      {"0 dimensions", Expect::kFormat, "1 to 4 dimensions, got 0", with_tensor(0, tensor("t", {}, 0, 0))},
      {"5 dimensions", Expect::kFormat, "got 5", with_tensor(0, tensor("t", {4, 1, 1, 1, 1}, 0, 0))},
      {"2^32 - 1 dimensions", Expect::kFormat, "got 4294967295",
       changed([](RawFile& f) { f.tensors[0].n_dims = u32(kMax); })},
      {"first size 0", Expect::kFormat, "at least 1, got [0, 3]", with_tensor(0, tensor("t", {0, 3}, 0, 0))},
      {"second size 0", Expect::kFormat, "at least 1", with_tensor(0, tensor("t", {4, 0}, 0, 0))},
      {"empty vector of floats", Expect::kFormat, "at least 1", with_tensor(0, tensor("t", {0}, 0, 0))},
      {"empty matrix of integers", Expect::kFormat, "at least 1", with_tensor(0, tensor("t", {0, 1}, 26, 0))},
      {"size 2^64 - 1", Expect::kFormat, "fit into 64 bits", with_tensor(0, tensor("t", {kMax}, 0, 0))},
      {"elements overflow to 0", Expect::kFormat, "fit into 64 bits",
       with_tensor(0, tensor("t", {1ULL << 32, 1ULL << 32}, 0, 0))},
      {"elements overflow to 12", Expect::kFormat, "fit into 64 bits",
       with_tensor(0, tensor("t", {4, 3, (1ULL << 62) + 1}, 0, 0))},
      {"bytes overflow", Expect::kFormat, "fit into 64 bits", with_tensor(0, tensor("t", {1ULL << 62}, 0, 0))},
      {"block bytes overflow", Expect::kFormat, "fit into 64 bits",
       with_tensor(0, tensor("t", {1ULL << 63, 1, 1, 16}, 8, 0))},
      {"bytes just below 2^64", Expect::kFormat, "truncated", with_tensor(0, tensor("t", {(1ULL << 62) - 1}, 0, 0))},
      {"row of 4 in blocks of 32", Expect::kFormat, "Q8_0 holds blocks of 32",
       with_tensor(0, tensor("t", {4, 8}, 8, 0))},
      {"row of 32 in blocks of 256", Expect::kFormat, "Q4_K holds blocks of 256",
       with_tensor(0, tensor("t", {32, 8}, 12, 0))},
      {"type Q2_K", Expect::kUnsupported, "tensor 'first.weight': type Q2_K",
       with_tensor(0, tensor("first.weight", {256}, 10, 0))},
      {"retired type 4", Expect::kUnsupported, "supported types: ", with_tensor(0, tensor("t", {32}, 4, 0))},
      {"type 9999", Expect::kUnsupported, "9999", with_tensor(0, tensor("t", {32}, 9999, 0))},
      {"type 18, I32 in split files only", Expect::kUnsupported, "IQ3_XXS",
       with_tensor(2, tensor("third", {8}, 18, 160))},
      {"offset 1", Expect::kFormat, "multiple of the alignment 32, got 1", with_tensor(0, tensor("t", {4, 3}, 0, 1))},
      {"offset aligned to 8, not to 32", Expect::kFormat, "multiple of the alignment",
       with_tensor(2, tensor("t", {8}, 26, 168))},
      {"offset at the end of the data", Expect::kFormat, "of the data, which has 192 bytes",
       with_tensor(2, tensor("t", {8}, 26, 192))},
      {"offset beyond the data", Expect::kFormat, "truncated", with_tensor(2, tensor("t", {8}, 26, 1 << 20))},
      {"offset plus size wraps around", Expect::kFormat, "truncated", with_tensor(2, tensor("t", {8}, 26, kMax - 31))},
      {"offset plus data start wraps around", Expect::kFormat, "truncated",
       with_tensor(2, tensor("t", {8}, 26, kMax - 255))},
      {"last tensor one row too long", Expect::kFormat, "expected 36 bytes at offset 160",
       with_tensor(2, tensor("t", {9}, 26, 160))},
      {"two tensors at one place", Expect::kFormat, "overlaps tensor", with_tensor(2, tensor("t", {8}, 26, 64))},
      {"tensors overlap by a part", Expect::kFormat, "overlaps tensor 'second.weight'",
       with_tensor(2, tensor("t", {8}, 26, 128))},
      {"tensor around another", Expect::kFormat, "overlaps tensor 'first.weight'",
       with_tensor(0, tensor("first.weight", {48}, 0, 0))},
      {"one byte of data missing", Expect::kFormat, "tensor 'third'",
       [](RawFile f) { return f.bytes().substr(0, f.bytes().size() - 1); }},
      {"no data", Expect::kFormat, "truncated", [](RawFile f) { return f.header(); }},
      {"cut in the tensor table", Expect::kFormat, "tensor 'third'",
       [](RawFile f) { return f.header().substr(0, f.header().size() - 4); }},
      {"alignment moves the data past the end", Expect::kFormat, "which has 0 bytes", changed([](RawFile& f) {
         f.entries[1] = {text("general.alignment"), u32(4) + u32(4096)};
         f.tensors.resize(1);
       })},
  };
}

void check_error(const Hostile& hostile, const Error& error, Expect got, const std::string& path) {
  const std::string message = error.what();
  const auto fail = [&](const std::string& what) { pi_test::fail(hostile.name, 0, what + ": " + message); };
  if (got != hostile.expect) fail("wrong class of error");
  if (message.compare(0, path.size() + 2, path + ": ") != 0) fail("the message does not begin with the file");
  if (message.find(hostile.message) == std::string::npos) fail(std::string("message lacks '") + hostile.message + "'");
  for (const char c : message) {
    if (c < ' ' || c > '~') return fail("the message is not plain text");
  }
}

void run(const std::vector<Hostile>& all) {
  const TempFolder folder;
  for (const Hostile& hostile : all) {
    const std::filesystem::path path = folder / "hostile.gguf";
    const std::string bytes = hostile.bytes(valid_file());
    write_file(path, bytes);
    for (const FileAccess access : {FileAccess::kMmap, FileAccess::kRead}) {
      largest_allocation = 0;
      try {
        GgufFile::open(path, access);
        pi_test::fail(hostile.name, 0, "was accepted");
      } catch (const FormatError& error) {
        check_error(hostile, error, Expect::kFormat, path.string());
      } catch (const UnsupportedError& error) {
        check_error(hostile, error, Expect::kUnsupported, path.string());
      }
      const std::size_t limit = 16384 + 8 * bytes.size();  // streams that ask for the free memory have buffers of 8 KiB
      if (largest_allocation > limit) {
        pi_test::fail(hostile.name, 0, "allocated " + std::to_string(largest_allocation.load()) + " bytes at once");
      }
    }
  }
  std::cout << all.size() << " kinds\n";
}

}  // namespace

TEST(the_base_of_the_hostile_files_is_valid) {
  const TempFolder folder;
  write_file(folder / "valid.gguf", valid_file().bytes());
  const GgufFile file = GgufFile::open(folder / "valid.gguf");
  CHECK_EQ(file.metadata().size(), std::size_t{6});
  CHECK_EQ(file.tensors().size(), std::size_t{3});
  CHECK_EQ(file.find_u32("a.u32").value(), 7U);
  CHECK_EQ(file.find_tensor("second.weight")->n_bytes, std::uint64_t{68});
}

TEST(hostile_headers) { run(header_cases()); }
TEST(hostile_metadata) { run(metadata_cases()); }
TEST(hostile_tensors) { run(tensor_cases()); }

TEST(every_truncation_is_refused) {
  const TempFolder folder;
  const std::string bytes = valid_file().bytes();
  int n_refused = 0;
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    write_file(folder / "cut.gguf", bytes.substr(0, n));
    try {
      GgufFile::open(folder / "cut.gguf");
    } catch (const FormatError&) {
      ++n_refused;
    }
  }
  CHECK_EQ(n_refused, static_cast<int>(bytes.size()));
}

TEST(sparse_file_of_zeros_cannot_ask_for_memory) {
  const TempFolder folder;
  // 8 GiB that take no disk: the header claims as many empty strings as fit.
  RawFile file;
  file.n_entries = 1;
  const std::uint64_t n_bytes = std::uint64_t{8} << 30;
  file.entries = {{text("k"), u32(9) + u32(8) + u64((n_bytes - 100) / 8)}};
  write_file(folder / "sparse.gguf", file.header());
  std::filesystem::resize_file(folder / "sparse.gguf", n_bytes);
  largest_allocation = 0;
  CHECK_THROWS(GgufFile::open(folder / "sparse.gguf"), FormatError, "at most 16777216 elements");
  CHECK(largest_allocation < 1 << 16);
}

TEST(arrays_of_a_file_are_limited_together) {
  const TempFolder folder;
  const auto array_of_u8 = [](const char* key, std::size_t n) {
    return RawEntry{text(key), u32(9) + u32(0) + u64(n) + std::string(n, '\1')};
  };
  constexpr std::size_t kHalf = std::size_t{1} << 23;
  RawFile file;
  file.entries = {array_of_u8("first", kHalf), array_of_u8("second", kHalf)};
  write_file(folder / "full.gguf", file.header());
  CHECK_EQ(GgufFile::open(folder / "full.gguf").metadata().size(), std::size_t{2});
  file.entries.push_back({text("third"), u32(9) + u32(8) + u64(1) + text("x")});
  write_file(folder / "over.gguf", file.header());
  CHECK_THROWS(
      GgufFile::open(folder / "over.gguf"), FormatError,
      "key 'third': expected arrays of at most 16777216 elements in the whole file, got 1 more after 16777216");
}

TEST(files_larger_than_memory_are_not_read) {
  const std::uint64_t available = base::available_memory_bytes();
  if (available == 0) {
    std::cout << "skipped: the system does not tell its available memory\n";
    return;
  }
  const TempFolder folder;
  const std::filesystem::path path = folder / "sparse.gguf";
  RawFile file = valid_file();
  for (const bool is_gguf : {true, false}) {
    file.magic = is_gguf ? "GGUF" : "GGXF";
    write_file(path, file.bytes());
    try {
      std::filesystem::resize_file(path, 2 * available);
    } catch (const std::filesystem::filesystem_error&) {
      std::cout << "skipped: no sparse files here\n";
      return;
    }
    if (is_gguf) {
      const std::string sizes = path.string() + ": reading the file takes " + std::to_string(2 * available);
      CHECK_THROWS(GgufFile::open(path, FileAccess::kRead), OutOfMemoryError, sizes);
      CHECK_THROWS(GgufFile::open(path, FileAccess::kRead), OutOfMemoryError, "weights 'mmap'");
      CHECK_EQ(GgufFile::open(path, FileAccess::kMmap).tensors().size(), std::size_t{3});
    } else {
      CHECK_THROWS(GgufFile::open(path, FileAccess::kRead), FormatError, "expected the magic bytes");
    }
  }
}

TEST_MAIN()
