// What the writer writes, the reader gives back: every value type, every element type, alignments, magics, versions.
#include <cstring>
#include <limits>

#if __has_include(<sys/resource.h>)
#include <sys/resource.h>

#include <csignal>
#endif

#include "gguf/raw_file.h"
#include "gguf/temp_folder.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"
#include "quant/dtype.h"
#include "test.h"

using namespace powerinfer;
using namespace pi_test;

namespace {

template <class T>
GgufValue scalar(T value) {
  return GgufScalar(std::move(value));
}
template <class T>
GgufValue array(std::vector<T> values) {
  return GgufArray(std::move(values));
}

template <class T>
void add_number(std::vector<std::pair<std::string, GgufValue>>& out, const std::string& name) {
  using Limits = std::numeric_limits<T>;
  out.emplace_back(name, scalar(Limits::lowest()));
  out.emplace_back(name + ".max", scalar(Limits::max()));
  out.emplace_back(name + ".array", array(std::vector<T>{Limits::lowest(), T{0}, T{1}, Limits::max()}));
  out.emplace_back(name + ".empty", array(std::vector<T>{}));
}

std::vector<std::pair<std::string, GgufValue>> every_value() {
  std::vector<std::pair<std::string, GgufValue>> out;
  add_number<std::uint8_t>(out, "u8");
  add_number<std::int8_t>(out, "i8");
  add_number<std::uint16_t>(out, "u16");
  add_number<std::int16_t>(out, "i16");
  add_number<std::uint32_t>(out, "u32");
  add_number<std::int32_t>(out, "i32");
  add_number<float>(out, "f32");
  add_number<std::uint64_t>(out, "u64");
  add_number<std::int64_t>(out, "i64");
  add_number<double>(out, "f64");
  out.emplace_back("bool", scalar(true));
  out.emplace_back("bool.false", scalar(false));
  out.emplace_back("bool.array", array(std::vector<bool>{true, false, false, true, true}));
  out.emplace_back("bool.empty", array(std::vector<bool>{}));
  out.emplace_back("string", scalar(std::string("text with \0 and \xFF and \xC3\xA9", 24)));
  out.emplace_back("string.empty", scalar(std::string()));
  out.emplace_back("string.array", array(std::vector<std::string>{"", "a", std::string(1000, 'b')}));
  return out;
}

constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                               DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kI32};

std::string pattern(std::size_t n, unsigned seed) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>((i * 31 + seed * 17 + i / 256) & 0xFF);
  return bytes;
}

GgufFile open_raw(const TempFolder& folder, const RawFile& file) {
  static int count = 0;
  const std::filesystem::path path = folder / ("raw-" + std::to_string(++count) + ".gguf");
  write_file(path, file.bytes());
  return GgufFile::open(path);
}

bool has_bytes(const GgufFile& file, const std::string& name, const std::string& expected) {
  const TensorInfo* info = file.find_tensor(name);
  return info != nullptr && info->n_bytes == expected.size() &&
         std::memcmp(file.data(*info), expected.data(), expected.size()) == 0;
}

}  // namespace

TEST(values_of_every_type) {
  const TempFolder folder;
  const auto values = every_value();
  GgufWriter writer(GgufWriter::Magic::kGguf);
  for (const auto& [key, value] : values) writer.add(key, value);
  writer.write(folder / "values.gguf");
  const GgufFile file = GgufFile::open(folder / "values.gguf");
  CHECK_EQ(file.version(), 3U);
  CHECK(!file.has_powerinfer_magic());
  CHECK_EQ(file.n_bytes(), std::filesystem::file_size(folder / "values.gguf"));
  CHECK_EQ(file.metadata().size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (file.metadata()[i] != values[i]) pi_test::fail(__FILE__, __LINE__, "differs: " + values[i].first);
    CHECK(file.find(values[i].first) == &file.metadata()[i].second);
  }
  CHECK(file.find("absent") == nullptr);
}

TEST(tensors_of_every_type_at_every_alignment) {
  const TempFolder folder;
  for (const std::uint32_t alignment : {8U, 16U, 32U, 64U, 4096U, 1U << 20}) {
    std::vector<std::string> contents;
    for (const DType type : kAllTypes)
      contents.push_back(pattern(dtype_row_bytes(type, 512) * 3, static_cast<unsigned>(type)));
    GgufWriter writer(GgufWriter::Magic::kPowerInfer, alignment);
    for (std::size_t i = 0; i < contents.size(); ++i) {
      writer.add_tensor(dtype_name(kAllTypes[i]), kAllTypes[i], {512, 3}, contents[i].data());
    }
    const std::string odd = pattern(4 * 7, 1);
    writer.add_tensor("odd", DType::kF32, {7}, odd.data());
    writer.add_tensor("four", DType::kF32, {1, 1, 7, 1}, odd.data());
    writer.add_tensor("none", DType::kI32, {0}, nullptr);
    writer.write(folder / "tensors.gguf");
    for (const FileAccess access : {FileAccess::kMmap, FileAccess::kRead}) {
      const GgufFile file = GgufFile::open(folder / "tensors.gguf", access);
      CHECK(file.has_powerinfer_magic());
      CHECK_EQ(file.alignment(), std::uint64_t{alignment});
      CHECK_EQ(file.find("general.alignment") != nullptr, alignment != 32);
      CHECK_EQ(file.n_bytes() % alignment, std::uint64_t{0});
      for (std::size_t i = 0; i < contents.size(); ++i) {
        const TensorInfo& info = file.tensors()[i];
        CHECK(info.type == kAllTypes[i] && info.n_cols() == 512 && info.n_rows() == 3);
        CHECK_EQ(info.offset % alignment, std::uint64_t{0});
        CHECK_EQ(reinterpret_cast<std::uintptr_t>(file.data(info)) % std::min(alignment, 64U), std::uintptr_t{0});
        CHECK(has_bytes(file, dtype_name(kAllTypes[i]), contents[i]));
      }
      CHECK(has_bytes(file, "odd", odd));
      CHECK(has_bytes(file, "four", odd));
      CHECK_EQ(file.find_tensor("four")->shape.size(), std::size_t{4});
      CHECK_EQ(file.find_tensor("none")->n_bytes, std::uint64_t{0});
      CHECK(file.find_tensor("absent") == nullptr);
    }
  }
}

TEST(versions_and_magics) {
  const TempFolder folder;
  for (const std::uint32_t version : {2U, 3U}) {
    for (const char* magic : {"GGUF", "PWRI"}) {
      RawFile raw_file = valid_file();
      raw_file.magic = magic;
      raw_file.version = u32(version);
      const GgufFile file = open_raw(folder, raw_file);
      CHECK_EQ(file.version(), version);
      CHECK_EQ(file.has_powerinfer_magic(), std::string(magic) == "PWRI");
      CHECK(has_bytes(file, "third", std::string(32, '\1')));
    }
  }
}

TEST(legal_corners) {
  const TempFolder folder;
  RawFile nothing;
  write_file(folder / "nothing.gguf", nothing.header());
  CHECK_EQ(GgufFile::open(folder / "nothing.gguf").tensors().size(), std::size_t{0});

  RawFile trailing = valid_file();
  trailing.data += std::string(1000, 'x');
  CHECK_EQ(open_raw(folder, trailing).tensors().size(), std::size_t{3});

  RawFile reversed = valid_file();
  std::swap(reversed.tensors[0], reversed.tensors[2]);
  CHECK(has_bytes(open_raw(folder, reversed), "third", std::string(32, '\1')));

  RawFile aligned = valid_file();
  aligned.alignment = 64;
  aligned.entries.push_back({text("general.alignment"), u32(4) + u32(64)});
  aligned.tensors = {tensor("t", {16}, 0, 64)};
  CHECK_EQ(open_raw(folder, aligned).tensors()[0].offset % 64, std::uint64_t{0});
}

TEST(split_files_of_the_reference_tool) {
  const TempFolder folder;
  RawFile split;
  split.magic = "PWRI";
  split.entries = {{text("general.architecture"), u32(8) + text("generic.gpu_index")}};
  split.tensors = {tensor("blk.0.gpu_idx", {8}, 18, 0), tensor("blk.0.gpu_bucket", {0}, 18, 32)};
  split.data = pattern(32, 3);
  const GgufFile file = open_raw(folder, split);
  CHECK(file.tensors()[0].type == DType::kI32 && file.tensors()[1].type == DType::kI32);
  CHECK(has_bytes(file, "blk.0.gpu_idx", split.data));
  split.magic = "GGUF";
  CHECK_THROWS(open_raw(folder, split), UnsupportedError, "IQ3_XXS");
}

TEST(typed_access) {
  const TempFolder folder;
  GgufWriter writer(GgufWriter::Magic::kGguf);
  for (const auto& [key, value] : every_value()) writer.add(key, value);
  writer.add("small", array(std::vector<std::uint64_t>{1, 2147483647}));
  writer.add("large", array(std::vector<std::uint64_t>{1, 2147483648}));
  const std::string path = (folder / "values.gguf").string();
  writer.write(path);
  const GgufFile file = GgufFile::open(path);

  CHECK_EQ(file.find_u32("u32.max").value(), 4294967295U);
  CHECK_EQ(file.find_u32("i8.max").value(), 127U);
  CHECK_EQ(file.find_u32("u8.max").value(), 255U);
  CHECK_EQ(file.find_u64("u64.max").value(), ~std::uint64_t{0});
  CHECK_EQ(file.find_u64("i64.max").value(), ~std::uint64_t{0} >> 1);
  CHECK_EQ(file.find_f32("f32.max").value(), std::numeric_limits<float>::max());
  CHECK(file.find_bool("bool").value() && !file.find_bool("bool.false").value());
  CHECK_EQ(file.find_string("string")->size(), std::size_t{24});
  CHECK_EQ(file.find_strings("string.array")->size(), std::size_t{3});
  CHECK_EQ(file.find_floats("f32.array")->size(), std::size_t{4});
  CHECK_EQ(file.find_i32s("i8.array").value()[0], -128);
  CHECK_EQ(file.find_i32s("u16.array").value()[3], 65535);
  CHECK_EQ(file.find_i32s("small").value()[1], 2147483647);
  CHECK(file.find_i32s("u32.empty").value().empty());

  CHECK(!file.find_u32("absent") && !file.find_u64("absent") && !file.find_f32("absent") && !file.find_bool("absent"));
  CHECK(file.find_string("absent") == nullptr && file.find_strings("absent") == nullptr);
  CHECK(file.find_floats("absent") == nullptr && !file.find_i32s("absent"));

  CHECK_THROWS(file.find_u32("u64.max"), FormatError, "got 18446744073709551615");
  CHECK_THROWS(file.find_u32("i8"), FormatError, path + ": key 'i8': expected an unsigned 32-bit integer, got -128");
  CHECK_THROWS(file.find_u64("i64"), FormatError, "got -9223372036854775808");
  CHECK_THROWS(file.find_u32("bool"), FormatError, "got bool");
  CHECK_THROWS(file.find_u32("f32"), FormatError, "got f32");
  CHECK_THROWS(file.find_u32("u32.array"), FormatError, "got array of u32");
  CHECK_THROWS(file.find_f32("f64"), FormatError, "expected f32, got f64");
  CHECK_THROWS(file.find_f32("u32"), FormatError, "expected f32, got u32");
  CHECK_THROWS(file.find_bool("u8"), FormatError, "expected bool, got u8");
  CHECK_THROWS(file.find_string("u8"), FormatError, "expected string, got u8");
  CHECK_THROWS(file.find_string("string.array"), FormatError, "got array of string");
  CHECK_THROWS(file.find_strings("string"), FormatError, "expected array of string, got string");
  CHECK_THROWS(file.find_floats("f64.array"), FormatError, "got array of f64");
  CHECK_THROWS(file.find_i32s("large"), FormatError, "got 2147483648");
  CHECK_THROWS(file.find_i32s("f32.array"), FormatError, "got array of f32");
  CHECK_THROWS(file.find_i32s("bool.array"), FormatError, "got array of bool");
  CHECK_THROWS(file.find_i32s("u32"), FormatError, "got u32");
}

TEST(writer_refuses_what_the_reader_would) {
  const TempFolder folder;
  const float data[64] = {};
  GgufWriter writer(GgufWriter::Magic::kGguf);
  writer.add("key", scalar(1U));
  writer.add_tensor("t", DType::kF32, {4}, data);
  CHECK_THROWS(writer.add("key", scalar(2U)), InvalidArgument, "'key' was added before");
  CHECK_THROWS(writer.add("", scalar(2U)), InvalidArgument, "is empty");
  CHECK_THROWS(writer.add(std::string("a\0b", 3), scalar(2U)), InvalidArgument, "zero byte");
  CHECK_THROWS(writer.add(std::string(65536, 'k'), scalar(2U)), InvalidArgument, "too long");
  CHECK_THROWS(writer.add("general.alignment", scalar(64U)), InvalidArgument, "alignment");
  CHECK_THROWS(writer.add_tensor("t", DType::kF32, {4}, data), InvalidArgument, "'t': was added before");
  CHECK_THROWS(writer.add_tensor("", DType::kF32, {4}, data), InvalidArgument, "is empty");
  CHECK_THROWS(writer.add_tensor(std::string(256, 'n'), DType::kF32, {4}, data), InvalidArgument, "too long");
  CHECK_THROWS(writer.add_tensor("u", DType::kF32, {}, data), InvalidArgument, "dimensions, got 0");
  CHECK_THROWS(writer.add_tensor("u", DType::kF32, {1, 1, 1, 1, 1}, data), InvalidArgument, "got 5");
  CHECK_THROWS(writer.add_tensor("u", DType::kF32, {0}, data), InvalidArgument, "at least 1");
  CHECK_THROWS(writer.add_tensor("u", DType::kQ8_0, {33}, data), InvalidArgument, "blocks of 32");
  CHECK_THROWS(writer.add_tensor("u", DType::kF32, {1ULL << 62, 4}, data), InvalidArgument, "fit");
  CHECK_THROWS(writer.add_tensor("u", static_cast<DType>(99), {4}, data), InvalidArgument, "supported types");
  CHECK_THROWS(GgufWriter(GgufWriter::Magic::kGguf, 48), InvalidArgument, "48");
  CHECK_THROWS(GgufWriter(GgufWriter::Magic::kGguf, 4), InvalidArgument, "power of two");
  writer.add("general.alignment", scalar(32U));
  writer.write(folder / "ok.gguf");
  const GgufFile file = GgufFile::open(folder / "ok.gguf");
  CHECK_EQ(file.metadata().size(), std::size_t{2});
  CHECK_EQ(file.tensors().size(), std::size_t{1});
}

TEST(header_and_offsets_of_a_file_written_by_the_caller) {
  const TempFolder folder;
  const float data[40] = {1.0F, 2.0F};
  const auto fill = [&](GgufWriter& writer, bool with_data) {
    writer.add("general.name", scalar(std::string("streamed")));
    writer.add_tensor("a", DType::kF32, {3}, with_data ? data : nullptr);
    writer.add_tensor("b", DType::kF32, {8, 4}, with_data ? data + 8 : nullptr);
  };
  GgufWriter whole(GgufWriter::Magic::kPowerInfer, 64);
  GgufWriter streamed(GgufWriter::Magic::kPowerInfer, 64);
  fill(whole, true);
  fill(streamed, false);
  whole.write(folder / "whole.gguf");
  CHECK_THROWS(streamed.write(folder / "streamed.gguf"), InvalidArgument, "null");
  CHECK(!std::filesystem::exists(folder / "streamed.gguf"));

  const GgufFile file = GgufFile::open(folder / "whole.gguf", FileAccess::kRead);
  const std::vector<TensorInfo> tensors = streamed.tensors();
  CHECK_EQ(tensors.size(), file.tensors().size());
  for (std::size_t i = 0; i < tensors.size(); ++i) CHECK_EQ(tensors[i].offset, file.tensors()[i].offset);
  const std::string header = streamed.header();
  CHECK_EQ(header.size(), static_cast<std::size_t>(file.tensors()[0].offset));
  const std::byte* first = file.data(file.tensors()[0]);
  CHECK(std::memcmp(first - header.size(), header.data(), header.size()) == 0);
}

TEST(writer_limits_arrays_as_the_reader_does) {
  constexpr std::size_t kMost = std::size_t{1} << 24;
  const TempFolder folder;
  GgufWriter writer(GgufWriter::Magic::kGguf);
  CHECK_THROWS(writer.add("all", array(std::vector<std::uint8_t>(kMost + 1))), InvalidArgument,
               "key 'all': expected arrays of at most 16777216 elements in the whole file, got 16777217 more after 0");
  writer.add("first", array(std::vector<std::uint8_t>(kMost - 2)));
  CHECK_THROWS(writer.add("second", array(std::vector<std::string>(3))), InvalidArgument, "got 3 more after 16777214");
  writer.add("second", array(std::vector<std::string>(2)));
  CHECK_THROWS(writer.add("third", array(std::vector<bool>(1))), InvalidArgument, "got 1 more after 16777216");
  writer.add("third", array(std::vector<bool>{}));
  writer.write(folder / "full.gguf");
  CHECK_EQ(GgufFile::open(folder / "full.gguf").metadata().size(), std::size_t{3});
}

TEST(writer_leaves_a_whole_file_or_none) {
  const TempFolder folder;
  GgufWriter writer(GgufWriter::Magic::kGguf);
  writer.add("key", scalar(1U));
  CHECK_THROWS(writer.write(folder / "absent/file.gguf"), InvalidArgument, "cannot create");
  CHECK_THROWS(writer.write(folder.path()), InvalidArgument, "not a regular file");
  writer.write(folder / "file.gguf");
  GgufWriter second(GgufWriter::Magic::kGguf);
  second.add("other", scalar(2U));
  const GgufFile open = GgufFile::open(folder / "file.gguf");
  try {
    second.write(folder / "file.gguf");
    CHECK_EQ(GgufFile::open(folder / "file.gguf").find_u32("other").value(), 2U);
  } catch (const InvalidArgument& error) {  // Windows does not replace a file that is mapped
    CHECK(std::string(error.what()).find("cannot replace the file") != std::string::npos);
    CHECK_EQ(GgufFile::open(folder / "file.gguf").find_u32("key").value(), 1U);
  }
  CHECK_EQ(open.find_u32("key").value(), 1U);  // what was open stays what it was
  std::size_t n_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++n_files;
  CHECK_EQ(n_files, std::size_t{1});
}

#if __has_include(<sys/resource.h>)
TEST(writer_removes_the_temporary_file_when_there_is_no_space) {
  const TempFolder folder;
  const std::string data = pattern(1 << 20, 1);
  GgufWriter writer(GgufWriter::Magic::kGguf);
  writer.add_tensor("t", DType::kI32, {data.size() / 4}, data.data());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 65536;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  CHECK_THROWS(writer.write(folder / "file.gguf"), InvalidArgument, "cannot write the file: ");
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(std::filesystem::is_empty(folder.path()));
}
#endif

TEST_MAIN()
