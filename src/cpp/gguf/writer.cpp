// GgufWriter: collects keys and tensors, writes a complete file or none.
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <random>
#include <set>
#include <system_error>

#include "base/text.h"
#include "gguf/format.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"

namespace powerinfer {
namespace {

namespace fs = std::filesystem;

struct PendingTensor {
  TensorInfo info;  // offset: within the data section
  const char* data;
};

template <class T>
void put(std::string& out, const T& number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(T));
}
void put(std::string& out, bool value) { out += value ? '\1' : '\0'; }
void put(std::string& out, const std::string& value) {
  put(out, std::uint64_t{value.size()});
  out += value;
}

void put_type(std::string& out, gguf::ValueType type) { put(out, static_cast<std::uint32_t>(type)); }

void put_value(std::string& out, const GgufValue& value) {
  if (const auto* scalar = std::get_if<GgufScalar>(&value)) {
    put_type(out, gguf::scalar_type(scalar->index()));
    std::visit([&](const auto& content) { put(out, content); }, *scalar);
    return;
  }
  const auto& array = std::get<GgufArray>(value);
  put_type(out, gguf::ValueType::kArray);
  put_type(out, gguf::scalar_type(array.index()));
  std::visit(
      [&](const auto& elements) {
        using Element = typename std::decay_t<decltype(elements)>::value_type;
        put(out, std::uint64_t{elements.size()});
        for (const Element& element : elements) put(out, element);
      },
      array);
}

std::size_t n_array_elements(const GgufValue& value) {
  const auto* array = std::get_if<GgufArray>(&value);
  return array == nullptr ? 0 : std::visit([](const auto& elements) { return elements.size(); }, *array);
}

void check_name(std::string_view what, std::string_view name, std::size_t max_bytes) {
  if (const char* fault = gguf::name_fault(name, max_bytes)) {
    throw InvalidArgument(base::text("GGUF writer: the ", what, " '", base::printable(name), "' ", fault,
                                     "; expected 1 to ", max_bytes, " bytes, none of them zero"));
  }
}

/// The file under its temporary name; removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target) : target_(target), path_(target) {
    // Beside the target, so that the rename stays within one file system; random, so that two writers do not meet.
    std::random_device random;
    path_ += base::text(".partial-", std::hex, random(), random());
    errno = 0;
    out_.open(path_, std::ios::binary | std::ios::trunc);
    if (!out_) fail("create");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (path_.empty()) return;
    out_.close();
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

  void write(const char* bytes, std::uint64_t n) {
    errno = 0;
    if (n > 0) out_.write(bytes, static_cast<std::streamsize>(n));
    if (!out_) fail("write");
  }

  void pad(std::uint64_t n) {
    static constexpr char kZeros[4096] = {};
    for (; n > 0; n -= std::min<std::uint64_t>(n, sizeof(kZeros)))
      write(kZeros, std::min<std::uint64_t>(n, sizeof(kZeros)));
  }

  void finish() {
    errno = 0;
    out_.close();
    if (!out_) fail("write");
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error) {
      throw InvalidArgument(base::text(target_.string(), ": cannot replace the file: ", error.message(),
                                       "; check the folder and its permissions"));
    }
    path_.clear();
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const std::string reason = errno != 0 ? std::generic_category().message(errno) : "unknown reason";
    throw InvalidArgument(base::text(target_.string(), ": cannot ", what, " the file: ", reason,
                                     "; check the folder, its permissions and the free space"));
  }

  fs::path target_;
  fs::path path_;  // empty once renamed
  std::ofstream out_;
};

}  // namespace

struct GgufWriter::Impl {
  Magic magic;
  std::uint32_t alignment;
  std::vector<std::pair<std::string, GgufValue>> entries;
  std::set<std::string, std::less<>> keys;
  std::vector<PendingTensor> tensors;
  std::set<std::string, std::less<>> names;
  std::uint64_t data_bytes = 0;
  std::size_t n_array_elements = 0;  // over all entries

  std::string header() const {
    std::string out(magic == Magic::kGguf ? gguf::kMagicGguf : gguf::kMagicPowerInfer);
    put(out, gguf::kVersionWritten);
    put(out, std::uint64_t{tensors.size()});
    const bool adds_alignment = alignment != gguf::kDefaultAlignment && !keys.contains(gguf::kAlignmentKey);
    put(out, std::uint64_t{entries.size() + (adds_alignment ? 1 : 0)});
    for (const auto& [key, value] : entries) {
      put(out, key);
      put_value(out, value);
    }
    if (adds_alignment) {
      put(out, std::string(gguf::kAlignmentKey));
      put_value(out, GgufScalar(alignment));
    }
    for (const PendingTensor& tensor : tensors) {
      put(out, tensor.info.name);
      put(out, static_cast<std::uint32_t>(tensor.info.shape.size()));
      for (const std::uint64_t size : tensor.info.shape) put(out, size);
      put(out, static_cast<std::uint32_t>(tensor.info.type));
      put(out, tensor.info.offset);
    }
    return out;
  }
};

GgufWriter::GgufWriter(Magic magic, std::uint32_t alignment) : impl_(std::make_unique<Impl>()) {
  if (!gguf::is_valid_alignment(alignment)) {
    throw InvalidArgument(base::text("GGUF writer: expected an alignment that is a power of two from ",
                                     gguf::kMinAlignment, " to ", gguf::kMaxAlignment, ", got ", alignment));
  }
  impl_->magic = magic;
  impl_->alignment = alignment;
}

GgufWriter::~GgufWriter() = default;
GgufWriter::GgufWriter(GgufWriter&&) noexcept = default;
GgufWriter& GgufWriter::operator=(GgufWriter&&) noexcept = default;

void GgufWriter::add(std::string key, GgufValue value) {
  check_name("key", key, gguf::kMaxKeyBytes);
  if (impl_->keys.contains(key)) {
    throw InvalidArgument(base::text("GGUF writer: key '", base::printable(key), "' was added before"));
  }
  if (key == gguf::kAlignmentKey && value != GgufValue(GgufScalar(impl_->alignment))) {
    throw InvalidArgument(base::text("GGUF writer: key '", key, "': expected the writer's own alignment, u32 ",
                                     impl_->alignment, "; give the alignment to the constructor instead"));
  }
  const std::size_t n_elements = n_array_elements(value);
  if (n_elements > gguf::kMaxArrayElements - impl_->n_array_elements) {
    throw InvalidArgument(base::text("GGUF writer: key '", base::printable(key), "': expected arrays of at most ",
                                     gguf::kMaxArrayElements, " elements in the whole file, got ", n_elements,
                                     " more after ", impl_->n_array_elements, "; store them as a tensor instead"));
  }
  impl_->n_array_elements += n_elements;
  impl_->keys.insert(key);
  impl_->entries.emplace_back(std::move(key), std::move(value));
}

void GgufWriter::add_tensor(std::string name, DType type, std::vector<std::uint64_t> shape, const void* data) {
  check_name("tensor name", name, gguf::kMaxTensorNameBytes);
  const auto fail = [&](const std::string& what) {
    throw InvalidArgument(base::text("GGUF writer: tensor '", base::printable(name), "': ", what));
  };
  if (impl_->names.contains(name)) fail("was added before");
  const quant::DTypeTraits* traits = quant::find_traits(static_cast<std::uint32_t>(type));
  if (traits == nullptr) {
    fail(base::text("type ", static_cast<std::uint32_t>(type),
                    " is unknown; supported types: ", quant::supported_dtypes()));
  }
  if (shape.empty() || shape.size() > gguf::kMaxDims) {
    fail(base::text("expected 1 to ", gguf::kMaxDims, " dimensions, got ", shape.size()));
  }
  const bool has_zero = std::find(shape.begin(), shape.end(), 0U) != shape.end();
  if (has_zero && !gguf::may_be_empty(type, shape.size())) fail("expected sizes of at least 1, got 0");
  if (shape[0] % traits->block_len != 0) {
    fail(base::text("type ", traits->name, " holds blocks of ", traits->block_len,
                    " values; expected a first size that is a multiple of it, got ", shape[0]));
  }
  const auto n_bytes = gguf::tensor_bytes(*traits, shape);
  const auto begin = gguf::checked_align(impl_->data_bytes, impl_->alignment);
  if (!n_bytes || !begin || *n_bytes > (std::uint64_t{1} << 62) - std::min(*begin, std::uint64_t{1} << 62)) {
    fail("its bytes do not fit into a file");
  }
  impl_->names.insert(name);
  impl_->tensors.push_back(
      {{std::move(name), type, std::move(shape), *begin, *n_bytes}, static_cast<const char*>(data)});
  impl_->data_bytes = *begin + *n_bytes;
}

std::string GgufWriter::header() const {
  std::string bytes = impl_->header();
  bytes.resize(*gguf::checked_align(bytes.size(), impl_->alignment));
  return bytes;
}

std::vector<TensorInfo> GgufWriter::tensors() const {
  const std::uint64_t begin = header().size();
  std::vector<TensorInfo> result;
  for (const PendingTensor& tensor : impl_->tensors) {
    result.push_back(tensor.info);
    result.back().offset += begin;
  }
  return result;
}

void GgufWriter::write(const std::filesystem::path& path) const {
  for (const PendingTensor& tensor : impl_->tensors) {
    if (tensor.data != nullptr || tensor.info.n_bytes == 0) continue;
    throw InvalidArgument(
        base::text("GGUF writer: tensor '", base::printable(tensor.info.name), "': its data is null"));
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InvalidArgument(base::text(path.string(), ": is not a regular file; give the path of a file"));
  }
  const std::string header = impl_->header();
  TemporaryFile file(path);
  file.write(header.data(), header.size());
  std::uint64_t position = header.size();  // every part begins at a multiple of the alignment
  const auto align = [&] {
    const std::uint64_t begin = *gguf::checked_align(position, impl_->alignment);
    file.pad(begin - position);
    position = begin;
  };
  for (const PendingTensor& tensor : impl_->tensors) {
    align();
    file.write(tensor.data, tensor.info.n_bytes);
    position += tensor.info.n_bytes;
  }
  align();
  file.finish();
}

}  // namespace powerinfer
