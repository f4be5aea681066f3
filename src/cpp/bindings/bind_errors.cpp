// The library's errors as Python exceptions, one to one; each also derives from the builtin that fits.
#include "common.h"

namespace powerinfer::bindings {
namespace {

constexpr const char* kModuleName = "powerinfer_py._core";

py::object add_error(py::module_& module, const char* name, const py::tuple& bases, const char* doc) {
  // Users meet them as members of the package.
  const std::string qualified = std::string("powerinfer_py.") + name;
  auto type =
      py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr));
  if (!type) throw py::error_already_set();
  module.attr(name) = type;
  return type;
}

void raise(const char* name, const char* message) {
  const py::object type = py::module_::import(kModuleName).attr(name);
  py::set_error(type, to_str(message));
}

void translate(std::exception_ptr pointer) {
  if (!pointer) return;
  try {
    std::rethrow_exception(pointer);
  } catch (const FormatError& error) {
    raise("FormatError", error.what());
  } catch (const UnsupportedError& error) {
    raise("UnsupportedError", error.what());
  } catch (const InvalidArgument& error) {
    raise("InvalidArgument", error.what());
  } catch (const OutOfMemoryError& error) {
    raise("OutOfMemoryError", error.what());
  } catch (const DeviceError& error) {
    raise("DeviceError", error.what());
  } catch (const StateError& error) {
    raise("StateError", error.what());
  } catch (const CancelledError& error) {
    raise("CancelledError", error.what());
  } catch (const Error& error) {
    raise("Error", error.what());
  } catch (const std::bad_alloc&) {
    raise("OutOfMemoryError", "an allocation failed");
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  const auto builtin = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  const py::object base =
      add_error(module, "Error", py::make_tuple(builtin(PyExc_Exception)), "Base of all errors of the library.");
  const auto derived = [&](const char* name, PyObject* also, const char* doc) {
    add_error(module, name, py::make_tuple(base, builtin(also)), doc);
  };
  derived("FormatError", PyExc_ValueError, "A file is truncated, corrupt or contradicts itself.");
  derived("UnsupportedError", PyExc_ValueError, "Well-formed, but not something this build can compute.");
  derived("InvalidArgument", PyExc_ValueError, "An argument is out of range or makes no sense.");
  derived("OutOfMemoryError", PyExc_MemoryError, "Memory that was asked for is not there.");
  derived("DeviceError", PyExc_RuntimeError, "A compute device failed or is not to be had.");
  derived("StateError", PyExc_RuntimeError, "The object cannot do this in its present state; the state is unchanged.");
  derived("CancelledError", PyExc_RuntimeError, "The call was ended by cancel().");
  py::register_local_exception_translator(translate);
}

}  // namespace powerinfer::bindings
