#include "models/tensor_source.h"

#include <limits>

#include "base/text.h"
#include "powerinfer/error.h"
#include "quant/dtype.h"

namespace powerinfer::models {

namespace {

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

bool is_matrix(const TensorInfo& info) {
  for (std::size_t i = 2; i < info.shape.size(); ++i) {
    if (info.shape[i] != 1) return false;
  }
  return info.shape.size() >= 2;
}

}  // namespace

const TensorInfo& TensorSource::require(const std::string& name) {
  const TensorInfo* info = file_.find_tensor(name);
  if (info == nullptr) {
    throw FormatError(base::text(file_.path().string(), ": tensor '", name,
                                 "' is missing; the file is incomplete: re-run the conversion or download it again"));
  }
  if (!quant::traits(info->type).is_weight) {
    throw FormatError(base::text(file_.path().string(), ": tensor '", name, "': expected a weight type, got ",
                                 dtype_name(info->type)));
  }
  used_.insert(name);
  return *info;
}

WeightView TensorSource::matrix_of_any_rows(const std::string& name, std::size_t n_cols) {
  const TensorInfo& info = require(name);
  if (!is_matrix(info) || info.shape[0] != n_cols) {
    throw FormatError(base::text(file_.path().string(), ": tensor '", name, "': expected [", n_cols, ", *], got ",
                                 shape_text(info.shape), "; re-run the conversion"));
  }
  if (info.shape[1] > std::numeric_limits<std::int32_t>::max()) {
    throw FormatError(
        base::text(file_.path().string(), ": tensor '", name, "': expected less than 2^31 rows, got ", info.shape[1]));
  }
  return {reinterpret_cast<const std::uint8_t*>(file_.data(info)),
          info.type,
          Layout::kRows,
          static_cast<std::size_t>(info.shape[1]),
          n_cols,
          dtype_row_bytes(info.type, n_cols)};
}

WeightView TensorSource::matrix(const std::string& name, std::size_t n_rows, std::size_t n_cols) {
  const TensorInfo& info = require(name);
  if (!is_matrix(info) || info.shape[0] != n_cols || info.shape[1] != n_rows) {
    throw FormatError(base::text(file_.path().string(), ": tensor '", name, "': expected [", n_cols, ", ", n_rows,
                                 "], got ", shape_text(info.shape), "; re-run the conversion"));
  }
  return matrix_of_any_rows(name, n_cols);
}

WeightView TensorSource::words(const std::string& name, std::size_t n_rows, std::size_t n_cols) {
  const TensorInfo* info = file_.find_tensor(name);
  if (info == nullptr || info->type != DType::kI32 || !is_matrix(*info) || info->shape[0] != n_cols ||
      info->shape[1] != n_rows) {
    const std::string found =
        info == nullptr ? "nothing" : base::text(dtype_name(info->type), " ", shape_text(info->shape));
    throw FormatError(base::text(file_.path().string(), ": tensor '", name, "': expected I32 [", n_cols, ", ", n_rows,
                                 "], got ", found, "; re-run the conversion"));
  }
  used_.insert(name);
  return {reinterpret_cast<const std::uint8_t*>(file_.data(*info)),
          info->type,
          Layout::kRows,
          n_rows,
          n_cols,
          n_cols * sizeof(std::uint32_t)};
}

const float* TensorSource::vector(const std::string& name, std::size_t n) {
  const TensorInfo& info = require(name);
  if (info.n_cols() != n || info.n_rows() != 1) {
    throw FormatError(base::text(file_.path().string(), ": tensor '", name, "': expected [", n, "], got ",
                                 shape_text(info.shape), "; re-run the conversion"));
  }
  storage_.push_back(std::make_unique<float[]>(n));
  dequantize(info.type, file_.data(info), n, storage_.back().get());
  return storage_.back().get();
}

const float* TensorSource::optional_vector(const std::string& name, std::size_t n) {
  return has(name) ? vector(name, n) : nullptr;
}

void TensorSource::require_all_used(const std::string& architecture) const {
  for (const TensorInfo& info : file_.tensors()) {
    if (used_.contains(info.name)) continue;
    throw UnsupportedError(base::text(file_.path().string(), ": tensor '", base::printable(info.name),
                                      "' is not part of architecture '", architecture,
                                      "' as this version computes it; leaving it out would be wrong"));
  }
}

}  // namespace powerinfer::models
