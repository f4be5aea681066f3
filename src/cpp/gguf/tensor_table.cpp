// Reading the tensor table and checking it against the data section.
#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "gguf/format.h"
#include "gguf/parser.h"
#include "powerinfer/error.h"

namespace powerinfer::gguf {
namespace {

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += base::text(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

/// Split files of the reference tool number I32 as its time did: 18, which means IQ3_XXS everywhere else.
constexpr std::uint32_t kSplitFileI32 = 18;

bool is_split_file(const ParsedFile& parsed) {
  const GgufValue expected = GgufScalar(std::string("generic.gpu_index"));
  return parsed.has_powerinfer_magic &&
         std::any_of(parsed.metadata.begin(), parsed.metadata.end(), [&](const auto& entry) {
           return entry.first == "general.architecture" && entry.second == expected;
         });
}

const quant::DTypeTraits& parse_type(Cursor& cursor, bool in_split_file) {
  const auto number = cursor.number<std::uint32_t>("the type");
  if (in_split_file && number == kSplitFileI32) return quant::traits(DType::kI32);
  if (const quant::DTypeTraits* traits = quant::find_traits(number)) return *traits;
  throw UnsupportedError(base::text(
      cursor.file(), ": ", cursor.place(), ": type ", quant::ggml_type_name(number), " (number ", number,
      ") is not supported; supported types: ", quant::supported_dtypes(), "; use a file quantized to one of these"));
}

std::vector<std::uint64_t> parse_shape(Cursor& cursor) {
  const auto n_dims = cursor.number<std::uint32_t>("the number of dimensions");
  if (n_dims < 1 || n_dims > kMaxDims) {
    cursor.fail(base::text("expected 1 to ", kMaxDims, " dimensions, got ", n_dims,
                           "; the file is damaged: download it again"));
  }
  std::vector<std::uint64_t> shape(n_dims);
  for (std::uint64_t& size : shape) size = cursor.number<std::uint64_t>("the shape");
  return shape;
}

void check_shape(const Cursor& cursor, const quant::DTypeTraits& traits, TensorInfo& tensor) {
  const bool has_zero = std::find(tensor.shape.begin(), tensor.shape.end(), 0U) != tensor.shape.end();
  if (has_zero && !may_be_empty(tensor.type, tensor.shape.size())) {
    cursor.fail(base::text("expected sizes of at least 1, got ", shape_text(tensor.shape), "; re-run the conversion"));
  }
  if (tensor.shape[0] % traits.block_len != 0) {
    cursor.fail(base::text("type ", traits.name, " holds blocks of ", traits.block_len,
                           " values; expected a first size that is a multiple of it, got ", shape_text(tensor.shape),
                           "; re-run the conversion"));
  }
  const auto n_bytes = tensor_bytes(traits, tensor.shape);
  if (!n_bytes) {
    cursor.fail(base::text("expected a shape whose bytes fit into 64 bits, got ", shape_text(tensor.shape),
                           "; the file is damaged: download it again"));
  }
  tensor.n_bytes = *n_bytes;
}

TensorInfo parse_tensor(Cursor& cursor, std::uint64_t alignment, bool in_split_file) {
  TensorInfo tensor;
  const std::string_view name = cursor.string("the name");
  if (const char* fault = name_fault(name, kMaxTensorNameBytes)) {
    cursor.fail(base::text("the name ", fault, " (", name.size(), " bytes; expected 1 to ", kMaxTensorNameBytes,
                           " bytes, none of them zero): '", base::printable(name), "'"));
  }
  tensor.name = name;
  cursor.set_place(base::text("tensor '", base::printable(name), "'"));
  tensor.shape = parse_shape(cursor);
  const quant::DTypeTraits& traits = parse_type(cursor, in_split_file);
  tensor.type = traits.type;
  check_shape(cursor, traits, tensor);
  tensor.offset = cursor.number<std::uint64_t>("the offset");
  if (tensor.offset % alignment != 0) {
    cursor.fail(base::text("expected an offset that is a multiple of the alignment ", alignment, ", got ",
                           tensor.offset, "; the file is damaged: download it again"));
  }
  return tensor;
}

void check_overlaps(Cursor& cursor, const std::vector<TensorInfo>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(tensors[a].offset, tensors[a].n_bytes) < std::pair(tensors[b].offset, tensors[b].n_bytes);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& left = tensors[order[i - 1]];
    const TensorInfo& right = tensors[order[i]];
    if (left.n_bytes > right.offset - left.offset) {
      cursor.set_place(base::text("tensor '", base::printable(right.name), "'"));
      cursor.fail(base::text("its data at offset ", right.offset, " overlaps tensor '", base::printable(left.name),
                             "' (", left.n_bytes, " bytes at offset ", left.offset,
                             "); the file is damaged: download it again"));
    }
  }
}

}  // namespace

void parse_tensors(Cursor& cursor, std::size_t n_tensors, std::uint64_t file_bytes, ParsedFile& out) {
  const bool in_split_file = is_split_file(out);
  for (std::size_t i = 0; i < n_tensors; ++i) {
    cursor.set_place(base::text("tensor ", i + 1, " of ", n_tensors));
    out.tensors.push_back(parse_tensor(cursor, out.alignment, in_split_file));
  }
  const auto name_of = [&](std::size_t i) -> std::string_view { return out.tensors[i].name; };
  out.tensors_by_name = NameIndex(n_tensors, name_of);
  if (const auto twice = out.tensors_by_name.duplicate(name_of)) {
    cursor.set_place("tensors");
    cursor.fail(base::text("expected every name once, got '", base::printable(name_of(*twice)),
                           "' twice; re-run the conversion"));
  }
  if (n_tensors == 0) return;

  // The header lies inside the file, so its end and one alignment more cannot overflow.
  const std::uint64_t data_start = *checked_align(cursor.position(), out.alignment);
  const std::uint64_t data_bytes = data_start <= file_bytes ? file_bytes - data_start : 0;
  for (TensorInfo& tensor : out.tensors) {
    if (tensor.offset > data_bytes || tensor.n_bytes > data_bytes - tensor.offset) {
      cursor.set_place(base::text("tensor '", base::printable(tensor.name), "'"));
      cursor.fail(base::text("expected ", tensor.n_bytes, " bytes at offset ", tensor.offset,
                             " of the data, which has ", data_bytes,
                             " bytes; the file is truncated or damaged: download it again"));
    }
    tensor.offset += data_start;
  }
  check_overlaps(cursor, out.tensors);
}

}  // namespace powerinfer::gguf
