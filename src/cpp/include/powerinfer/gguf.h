// Reading and writing GGUF files (versions 2 and 3; magic "GGUF" or "PWRI").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace powerinfer {

/// Element types of tensors; the values are GGUF's own type numbers.
enum class DType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kI32 = 26,
  kBF16 = 30,
};

/// Name as GGUF tools print it ("F32", "Q4_K", ...). Never null.
const char* dtype_name(DType type) noexcept;

/// Bytes of a row of `n_cols` values. Throws InvalidArgument if the type's block length does not divide n_cols.
std::size_t dtype_row_bytes(DType type, std::size_t n_cols);

/// Dequantizes `n` values (a multiple of the block length) from `data` into `out` [n].
/// Throws InvalidArgument for I32 and for lengths that are no multiple.
void dequantize(DType type, const void* data, std::size_t n, float* out);

/// Values per block of the type (1 for F32, 32 for Q8_0, 256 for Q4_K).
std::size_t dtype_block_length(DType type) noexcept;

/// Rows to be written as another type.
struct RowConversion {
  DType source = DType::kF32;
  const void* data = nullptr;  ///< [n_rows, dtype_row_bytes(source, n_cols)]
  std::size_t n_rows = 0;
  std::size_t n_cols = 0;
  DType target = DType::kF32;
  const float* importance = nullptr;  ///< [n_cols] >= 0: weights of the squared errors; null: the type's plain rule
  int n_threads = 0;                  ///< 0: one per usable core
};
/// Writes them to `out` [n_rows, dtype_row_bytes(target, n_cols)]; the same bytes for any number of threads. F16, BF16,
/// Q8_0, Q4_0, Q4_1, Q5_0 (without importance) as the gguf package makes them; K types by a search for the least
/// squared error. Throws FormatError naming row and column of the first value that is NaN, infinite or beyond the
/// target type; InvalidArgument for lengths that are no multiple of the block length and for a bad importance;
/// UnsupportedError for I32.
void convert_rows(const RowConversion& job, void* out);

/// Transposes [n_rows, n_cols] elements of 1, 2, 4 or 8 bytes into `out` [n_cols, n_rows].
/// Throws InvalidArgument for other element sizes.
void transpose(const void* data, std::size_t n_rows, std::size_t n_cols, std::size_t element_bytes, void* out,
               int n_threads = 0);

/// A metadata value. Integers keep the width they have in the file.
using GgufScalar = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t,
                                float, bool, std::string, std::uint64_t, std::int64_t, double>;
using GgufArray = std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>,
                               std::vector<std::int16_t>, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                               std::vector<float>, std::vector<bool>, std::vector<std::string>,
                               std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;
using GgufValue = std::variant<GgufScalar, GgufArray>;

struct TensorInfo {
  std::string name;
  DType type = DType::kF32;
  std::vector<std::uint64_t> shape;  ///< GGUF order: shape[0] is the fastest-varying dimension (columns).
  std::uint64_t offset = 0;          ///< bytes from the start of the file
  std::uint64_t n_bytes = 0;

  std::uint64_t n_cols() const { return shape.empty() ? 1 : shape[0]; }
  std::uint64_t n_rows() const {
    std::uint64_t rows = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) rows *= shape[i];
    return rows;
  }
};

/// How the file's bytes are brought into memory.
enum class FileAccess { kMmap, kRead };

/// An opened, fully validated GGUF file. Immutable; may be shared by threads. Copies share the same file.
/// Untrusted input: every count, size, offset and type is checked on open, which throws FormatError or
/// UnsupportedError (naming file, key or tensor) and never allocates more than the file can justify.
class GgufFile {
 public:
  /// Opens and validates. Throws InvalidArgument when the path cannot be read, OutOfMemoryError
  /// when FileAccess::kRead would not fit into free memory.
  static GgufFile open(const std::filesystem::path& path, FileAccess access = FileAccess::kMmap);

  const std::filesystem::path& path() const;
  std::uint32_t version() const;
  bool has_powerinfer_magic() const;  ///< the first bytes are "PWRI"
  std::uint64_t alignment() const;
  std::uint64_t n_bytes() const;  ///< file size

  /// Metadata in file order.
  std::span<const std::pair<std::string, GgufValue>> metadata() const;
  const GgufValue* find(std::string_view key) const;  ///< null when absent

  /// Typed access. Integers convert between widths when the value fits; a present key of another kind (or an
  /// integer out of range) is a FormatError that names file, key, expected and found type.
  std::optional<std::uint32_t> find_u32(std::string_view key) const;
  std::optional<std::uint64_t> find_u64(std::string_view key) const;
  std::optional<float> find_f32(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  const std::string* find_string(std::string_view key) const;
  const std::vector<std::string>* find_strings(std::string_view key) const;
  const std::vector<float>* find_floats(std::string_view key) const;
  std::optional<std::vector<std::int32_t>> find_i32s(std::string_view key) const;  ///< any integer array that fits

  std::span<const TensorInfo> tensors() const;
  const TensorInfo* find_tensor(std::string_view name) const;  ///< null when absent
  /// The tensor's bytes; valid as long as any copy of this GgufFile lives. Aligned to alignment() in the file.
  const std::byte* data(const TensorInfo& tensor) const;

 private:
  struct Impl;
  explicit GgufFile(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Writes a GGUF v3 file: to a temporary name beside `path`, renamed when complete.
class GgufWriter {
 public:
  enum class Magic { kGguf, kPowerInfer };

  explicit GgufWriter(Magic magic, std::uint32_t alignment = 32);
  ~GgufWriter();
  GgufWriter(GgufWriter&&) noexcept;
  GgufWriter& operator=(GgufWriter&&) noexcept;

  /// Adds a key. Throws InvalidArgument on a duplicate, or on more than 2^24 array elements in all.
  void add(std::string key, GgufValue value);
  /// Adds a tensor whose bytes must stay valid until write(); the size follows from type and shape (GGUF order).
  /// Null: the caller writes the file itself, from header() and tensors().
  void add_tensor(std::string name, DType type, std::vector<std::uint64_t> shape, const void* data);
  /// What stands before the first tensor's bytes, padding included.
  std::string header() const;
  /// The tensors in the order of add_tensor(), with their offsets from the start of the file.
  std::vector<TensorInfo> tensors() const;
  /// Writes the file. Throws InvalidArgument when it cannot be written; no partial file remains under `path`.
  void write(const std::filesystem::path& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace powerinfer
