// Rows of weights from one element type to another; transposition.
#include "common.h"

namespace powerinfer::bindings {
namespace {

using Bytes = py::array_t<std::uint8_t>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

struct BufferView {
  py::buffer_info info;
  std::size_t n_bytes = 0;
};

BufferView contiguous(const py::buffer& data, const char* what) {
  BufferView view{data.request(), 0};
  if (PyBuffer_IsContiguous(view.info.view(), 'C') == 0) {
    throw InvalidArgument(std::string(what) + ": the data is not contiguous");
  }
  view.n_bytes = static_cast<std::size_t>(view.info.size * view.info.itemsize);
  return view;
}

const float* importance_of(const std::optional<Floats>& importance, std::size_t n_cols) {
  if (!importance) return nullptr;
  if (importance->ndim() != 1 || static_cast<std::size_t>(importance->size()) != n_cols) {
    throw InvalidArgument("importance: expected " + std::to_string(n_cols) + " values, one for each column, got " +
                          std::to_string(importance->size()));
  }
  return importance->data();
}

Bytes run(const RowConversion& job) {
  Bytes result({job.n_rows, dtype_row_bytes(job.target, job.n_cols)});
  void* out = result.mutable_data();
  const py::gil_scoped_release release;
  convert_rows(job, out);
  return result;
}

Bytes quantize(const std::string& type, const Floats& values, const std::optional<Floats>& importance, int n_threads) {
  if (values.ndim() != 2) throw InvalidArgument("quantize: expected values [rows, columns]");
  const auto n_cols = static_cast<std::size_t>(values.shape(1));
  return run({.source = DType::kF32,
              .data = values.data(),
              .n_rows = static_cast<std::size_t>(values.shape(0)),
              .n_cols = n_cols,
              .target = dtype_from(type),
              .importance = importance_of(importance, n_cols),
              .n_threads = n_threads});
}

Bytes convert(const std::string& source_type, const py::buffer& data, std::size_t n_cols,
              const std::string& target_type, const std::optional<Floats>& importance, int n_threads) {
  const DType source = dtype_from(source_type);
  const BufferView view = contiguous(data, "convert_rows");
  const std::size_t row_bytes = dtype_row_bytes(source, n_cols);
  if (row_bytes == 0 || view.n_bytes % row_bytes != 0) {
    throw InvalidArgument("convert_rows: rows of " + std::to_string(n_cols) + " values of " + source_type + " take " +
                          std::to_string(row_bytes) + " bytes each, got " + std::to_string(view.n_bytes) +
                          " bytes in all");
  }
  return run({.source = source,
              .data = view.info.ptr,
              .n_rows = view.n_bytes / row_bytes,
              .n_cols = n_cols,
              .target = dtype_from(target_type),
              .importance = importance_of(importance, n_cols),
              .n_threads = n_threads});
}

Bytes transposed(const py::buffer& data, std::size_t n_rows, std::size_t n_cols, std::size_t element_bytes,
                 int n_threads) {
  const BufferView view = contiguous(data, "transpose");
  const std::size_t available = element_bytes == 0 ? 0 : view.n_bytes / element_bytes;
  const bool fits = n_rows == 0 || n_cols == 0 ? view.n_bytes == 0
                                               : available % n_rows == 0 && available / n_rows == n_cols &&
                                                     available * element_bytes == view.n_bytes;
  if (!fits) {
    throw InvalidArgument("transpose: " + std::to_string(view.n_bytes) + " bytes are not [" + std::to_string(n_rows) +
                          ", " + std::to_string(n_cols) + "] elements of " + std::to_string(element_bytes) + " bytes");
  }
  Bytes result({n_cols, n_rows * element_bytes});
  void* out = result.mutable_data();
  const py::gil_scoped_release release;
  transpose(view.info.ptr, n_rows, n_cols, element_bytes, out, n_threads);
  return result;
}

}  // namespace

void bind_quant(py::module_& module) {
  module.def("quantize", quantize, py::arg("type"), py::arg("values"), py::arg("importance") = py::none(),
             py::arg("n_threads") = 0,
             "Rows of float32 values as rows of `type`, uint8 [rows, row_bytes]; importance [columns] weighs errors.");
  module.def("convert_rows", convert, py::arg("source_type"), py::arg("data"), py::arg("n_cols"),
             py::arg("target_type"), py::arg("importance") = py::none(), py::arg("n_threads") = 0,
             "Rows of one type as rows of another, uint8 [rows, row_bytes]; FormatError names the first NaN.");
  module.def("transpose", transposed, py::arg("data"), py::arg("n_rows"), py::arg("n_cols"), py::arg("element_bytes"),
             py::arg("n_threads") = 0, "The bytes of the transposed matrix, uint8 [n_cols, n_rows * element_bytes].");
  module.def(
      "row_bytes",
      [](const std::string& type, std::size_t n_cols) { return dtype_row_bytes(dtype_from(type), n_cols); },
      py::arg("type"), py::arg("n_cols"), "Bytes of a row.");
  module.def(
      "block_length", [](const std::string& type) { return dtype_block_length(dtype_from(type)); }, py::arg("type"),
      "Values per block.");
}

}  // namespace powerinfer::bindings
