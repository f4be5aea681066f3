// Sinks that observe taps without Python.
#include "common.h"
#include "powerinfer/sinks.h"

namespace powerinfer::bindings {
namespace {

template <class T>
py::array_t<T> to_table(const std::vector<T>& values, std::size_t n_rows) {
  const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(n_rows),
                                       static_cast<py::ssize_t>(values.size() / n_rows)};
  return py::array_t<T>(shape, values.data());
}

template <class T>
py::array_t<T> to_vector(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::array take(RowRecorder& self, std::size_t layer) {
  const std::vector<std::uint16_t> bits = self.take(layer);
  const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(bits.size() / self.width()),
                                       static_cast<py::ssize_t>(self.width())};
  return py::array(py::dtype("float16"), shape, bits.data());
}

}  // namespace

void bind_sinks(py::module_& module) {
  py::class_<TapSink, std::shared_ptr<TapSink>>(module, "TapSink", "What can be attached to a tap.");
  py::class_<ActivationCounter, TapSink, std::shared_ptr<ActivationCounter>>(
      module, "ActivationCounter", "Counts per layer and column how often a tapped value is not zero.")
      .def(py::init<std::size_t, std::size_t>(), py::arg("n_layers"), py::arg("width"))
      .def_property_readonly(
          "counts",
          [](const ActivationCounter& self) {
            const auto n_layers = self.n_rows().size();
            return to_table(self.counts(), n_layers);
          },
          "uint64 [n_layers, width], a copy.")
      .def_property_readonly(
          "n_rows", [](const ActivationCounter& self) { return to_vector(self.n_rows()); },
          "uint64 [n_layers]: rows seen.")
      .def("reset", &ActivationCounter::reset);
  py::class_<SquareSums, TapSink, std::shared_ptr<SquareSums>>(
      module, "SquareSums", "Sums per layer and column the squares of tapped values.")
      .def(py::init<std::size_t, std::size_t>(), py::arg("n_layers"), py::arg("width"))
      .def_property_readonly(
          "sums",
          [](const SquareSums& self) {
            const auto n_layers = self.n_rows().size();
            return to_table(self.sums(), n_layers);
          },
          "float64 [n_layers, width], a copy.")
      .def_property_readonly(
          "n_rows", [](const SquareSums& self) { return to_vector(self.n_rows()); }, "uint64 [n_layers]: rows seen.")
      .def("reset", &SquareSums::reset);
  py::class_<RowRecorder, TapSink, std::shared_ptr<RowRecorder>>(
      module, "RowRecorder", "Keeps tapped rows of some layers as float16 until they are taken.")
      .def(py::init<std::size_t, std::size_t, const std::vector<std::size_t>&>(), py::arg("n_layers"), py::arg("width"),
           py::arg("layers"))
      .def("take", &take, py::arg("layer"), "float16 [n_rows, width]: a layer's rows since the last call.");
}

}  // namespace powerinfer::bindings
