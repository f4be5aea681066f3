// GgufHeader: what stands before the tensors of a file, for tools that stream the tensors themselves; and the typed
// metadata that such tools copy. Strings that are not UTF-8 travel as surrogate escapes, so that a copy loses nothing.
#include <type_traits>
#include <utility>

#include "common.h"

namespace powerinfer::bindings {
namespace {

// The order of the alternatives of GgufScalar and GgufArray.
constexpr std::array kTypeNames{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "u64", "i64", "f64"};
static_assert(kTypeNames.size() == std::variant_size_v<GgufScalar>);
static_assert(kTypeNames.size() == std::variant_size_v<GgufArray>);

py::object string_to_python(const std::string& text) {
  PyObject* object = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "surrogateescape");
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

std::string string_from_python(py::handle object) {
  if (!py::isinstance<py::str>(object)) throw py::type_error("expected a str");
  PyObject* bytes = PyUnicode_AsEncodedString(object.ptr(), "utf-8", "surrogateescape");
  if (bytes == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

template <class T>
py::object element_to_python(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return string_to_python(value);
  } else {
    return py::cast(value);
  }
}

template <class T>
T element_from_python(py::handle object) {
  if constexpr (std::is_same_v<T, std::string>) {
    return string_from_python(object);
  } else {
    return object.cast<T>();
  }
}

/// ("u32", 7) or ("[string]", ["a", ...]); numeric arrays as numpy arrays.
py::tuple value_to_python(const GgufValue& value) {
  if (const auto* scalar = std::get_if<GgufScalar>(&value)) {
    return py::make_tuple(kTypeNames[scalar->index()],
                          std::visit([](const auto& inner) { return element_to_python(inner); }, *scalar));
  }
  const auto& array = std::get<GgufArray>(value);
  const std::string name = std::string("[") + kTypeNames[array.index()] + "]";
  return std::visit(
      [&](const auto& values) -> py::tuple {
        using T = typename std::decay_t<decltype(values)>::value_type;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          py::array_t<T> result(static_cast<py::ssize_t>(values.size()));
          std::copy(values.begin(), values.end(), result.mutable_data());
          return py::make_tuple(name, result);
        } else {
          py::list result;
          for (const auto& each : values) result.append(element_to_python(T(each)));
          return py::make_tuple(name, result);
        }
      },
      array);
}

template <class T>
std::vector<T> array_from_python(const py::object& object) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    if (py::isinstance<py::array>(object)) {
      const auto values = object.cast<py::array_t<T, py::array::c_style>>();
      return {values.data(), values.data() + values.size()};
    }
  }
  std::vector<T> values;
  for (const py::handle each : object) values.push_back(element_from_python<T>(each));
  return values;
}

template <std::size_t... kIndex>
GgufValue value_of_type(const std::string& type, const py::object& object, std::index_sequence<kIndex...>) {
  std::optional<GgufValue> result;
  const auto try_type = [&]<std::size_t kAt>(std::integral_constant<std::size_t, kAt>) {
    if (type == kTypeNames[kAt]) {
      result = GgufScalar(std::in_place_index<kAt>,
                          element_from_python<std::variant_alternative_t<kAt, GgufScalar>>(object));
    } else if (type == std::string("[") + kTypeNames[kAt] + "]") {
      using Array = std::variant_alternative_t<kAt, GgufArray>;
      result = GgufArray(std::in_place_index<kAt>, array_from_python<typename Array::value_type>(object));
    }
  };
  (try_type(std::integral_constant<std::size_t, kIndex>{}), ...);
  if (!result) throw InvalidArgument("metadata type '" + type + "' is unknown; expected e.g. 'u32' or '[string]'");
  return *std::move(result);
}

GgufValue value_from_python(const std::string& key, const std::string& type, const py::object& object) {
  const auto fail = [&]() -> InvalidArgument {
    return InvalidArgument("metadata key '" + key + "': " + std::string(py::str(py::repr(object))).substr(0, 100) +
                           " is no " + type);
  };
  try {
    return value_of_type(type, object, std::make_index_sequence<std::variant_size_v<GgufScalar>>{});
  } catch (const py::cast_error&) {
    throw fail();
  } catch (const py::error_already_set&) {
    throw fail();
  } catch (const py::type_error&) {
    throw fail();
  }
}

py::dict typed_metadata(const GgufFile& file) {
  py::dict result;
  for (const auto& [key, value] : file.metadata()) result[string_to_python(key)] = value_to_python(value);
  return result;
}

}  // namespace

void bind_gguf_writer(py::module_& module) {
  module.def("typed_metadata", typed_metadata, py::arg("file"),
             "All keys in file order: key -> (type, value), e.g. ('u32', 7) or ('[string]', [...]).");

  py::class_<GgufWriter>(module, "GgufHeader", "Collects keys and tensors of a file whose tensors the caller writes.")
      .def(py::init([](bool powerinfer, std::uint32_t alignment) {
             return GgufWriter(powerinfer ? GgufWriter::Magic::kPowerInfer : GgufWriter::Magic::kGguf, alignment);
           }),
           py::kw_only(), py::arg("powerinfer"), py::arg("alignment") = 32)
      .def(
          "add",
          [](GgufWriter& self, py::handle key, const std::string& type, const py::object& value) {
            std::string name = string_from_python(key);
            GgufValue converted = value_from_python(name, type, value);
            self.add(std::move(name), std::move(converted));
          },
          py::arg("key"), py::arg("type"), py::arg("value"))
      .def(
          "add_tensor",
          [](GgufWriter& self, std::string name, const std::string& type, std::vector<std::uint64_t> shape) {
            self.add_tensor(std::move(name), dtype_from(type), std::move(shape), nullptr);
          },
          py::arg("name"), py::arg("type"), py::arg("shape"), "shape in GGUF order.")
      .def(
          "encode", [](const GgufWriter& self) { return py::bytes(self.header()); },
          "The bytes before the first tensor.")
      .def_property_readonly("tensors", &GgufWriter::tensors, "With offsets from the start of the file.");
}

}  // namespace powerinfer::bindings
