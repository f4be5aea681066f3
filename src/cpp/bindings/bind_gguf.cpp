// GgufFile and TensorInfo: what a file says about itself, and its bytes.
#include <type_traits>

#include "common.h"

namespace powerinfer::bindings {
namespace {

py::object scalar_to_python(const GgufScalar& scalar) {
  return std::visit(
      [](const auto& value) -> py::object {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
          return to_str(value);
        } else {
          return py::cast(value);
        }
      },
      scalar);
}

py::object array_to_python(const GgufArray& array) {
  return std::visit(
      [](const auto& values) -> py::object {
        using T = typename std::decay_t<decltype(values)>::value_type;
        if constexpr (std::is_same_v<T, std::string>) {
          py::list list(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) list[i] = to_str(values[i]);
          return list;
        } else {
          py::array_t<T> result(static_cast<py::ssize_t>(values.size()));
          std::copy(values.begin(), values.end(), result.mutable_data());
          return result;
        }
      },
      array);
}

py::dict metadata(const GgufFile& file) {
  py::dict result;
  for (const auto& [key, value] : file.metadata()) {
    result[to_str(key)] = std::visit(
        [](const auto& inner) -> py::object {
          if constexpr (std::is_same_v<std::decay_t<decltype(inner)>, GgufScalar>) {
            return scalar_to_python(inner);
          } else {
            return array_to_python(inner);
          }
        },
        value);
  }
  return result;
}

const TensorInfo& tensor_of(const GgufFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find_tensor(name);
  if (tensor == nullptr) throw InvalidArgument(file.path().string() + ": no tensor is called '" + name + "'");
  return *tensor;
}

std::vector<py::ssize_t> numpy_shape(const TensorInfo& tensor) { return {tensor.shape.rbegin(), tensor.shape.rend()}; }

py::array_t<std::uint8_t> tensor_bytes(const GgufFile& file, const std::string& name) {
  const TensorInfo& tensor = tensor_of(file, name);
  py::array_t<std::uint8_t> result(static_cast<py::ssize_t>(tensor.n_bytes));
  const auto* from = reinterpret_cast<const std::uint8_t*>(file.data(tensor));
  std::copy(from, from + tensor.n_bytes, result.mutable_data());
  return result;
}

py::array_t<float> dequantize_tensor(const GgufFile& file, const std::string& name) {
  const TensorInfo& tensor = tensor_of(file, name);
  py::array_t<float> result(numpy_shape(tensor));
  float* out = result.mutable_data();
  const auto n = static_cast<std::size_t>(result.size());
  const py::gil_scoped_release release;
  dequantize(tensor.type, file.data(tensor), n, out);
  return result;
}

py::array_t<float> dequantize_bytes(const std::string& type_name, const py::buffer& data, std::size_t n) {
  const DType type = dtype_from(type_name);
  const py::buffer_info info = data.request();
  if (PyBuffer_IsContiguous(info.view(), 'C') == 0) throw InvalidArgument("dequantize: the data is not contiguous");
  const std::size_t needed = dtype_row_bytes(type, n);
  const auto found = static_cast<std::size_t>(info.size * info.itemsize);
  if (found != needed) {
    throw InvalidArgument("dequantize: " + std::to_string(n) + " values of " + type_name + " take " +
                          std::to_string(needed) + " bytes, got " + std::to_string(found));
  }
  py::array_t<float> result(static_cast<py::ssize_t>(n));
  dequantize(type, info.ptr, n, result.mutable_data());
  return result;
}

FileAccess access_from(const std::string& name) {
  if (name == "mmap") return FileAccess::kMmap;
  if (name == "read") return FileAccess::kRead;
  throw InvalidArgument("access '" + name + "' is unknown; expected 'mmap' or 'read'");
}

}  // namespace

void bind_gguf(py::module_& module) {
  py::class_<TensorInfo>(module, "TensorInfo", "One tensor of a file.")
      .def_property_readonly("name", [](const TensorInfo& t) { return to_str(t.name); })
      .def_property_readonly(
          "type", [](const TensorInfo& t) { return dtype_name(t.type); }, "Type name, e.g. 'Q8_0'.")
      .def_property_readonly(
          "shape", [](const TensorInfo& t) { return py::tuple(py::cast(t.shape)); },
          "GGUF order: the first number is the fastest-varying dimension (columns).")
      .def_readonly("offset", &TensorInfo::offset, "Bytes from the start of the file.")
      .def_readonly("n_bytes", &TensorInfo::n_bytes)
      .def("__repr__", [](const TensorInfo& t) {
        return to_str("TensorInfo(" + t.name + ", " + dtype_name(t.type) + ", " +
                      py::repr(py::tuple(py::cast(t.shape))).cast<std::string>() + ")");
      });

  py::class_<GgufFile>(module, "GgufFile", "An opened, validated GGUF file. Immutable; may be shared by threads.")
      .def(py::init([](const std::filesystem::path& path, const std::string& access) {
             const FileAccess chosen = access_from(access);
             const py::gil_scoped_release release;
             return GgufFile::open(path, chosen);
           }),
           py::arg("path"), py::kw_only(), py::arg("access") = "mmap")
      .def_property_readonly("path", &GgufFile::path)
      .def_property_readonly("version", &GgufFile::version)
      .def_property_readonly("has_powerinfer_magic", &GgufFile::has_powerinfer_magic)
      .def_property_readonly("alignment", &GgufFile::alignment)
      .def_property_readonly("n_bytes", &GgufFile::n_bytes, "File size in bytes.")
      .def_property_readonly("metadata", metadata, "All keys; numeric arrays as numpy arrays, string arrays as lists.")
      .def_property_readonly("tensors",
                             [](const GgufFile& file) {
                               const auto all = file.tensors();
                               return std::vector<TensorInfo>(all.begin(), all.end());
                             })
      .def("data", tensor_bytes, py::arg("name"), "Copy of a tensor's bytes, uint8 [n_bytes].")
      .def("dequantize", dequantize_tensor, py::arg("name"),
           "A tensor's values, float32; numpy order, so a matrix is [rows, columns].");

  module.def("dequantize", dequantize_bytes, py::arg("type"), py::arg("data"), py::arg("n"),
             "float32 [n] from the bytes of n values of a block type.");
}

}  // namespace powerinfer::bindings
