// The log callback.
#include "common.h"
#include "powerinfer/log.h"

namespace powerinfer::bindings {
namespace {

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
  }
  return "info";
}

void set_callback(const py::object& callable) {
  LogCallback callback;
  if (!callable.is_none()) {
    if (PyCallable_Check(callable.ptr()) == 0) throw py::type_error("set_log_callback: expected a callable or None");
    // The last reference may be dropped on a thread that does not hold the GIL.
    const std::shared_ptr<py::object> held(new py::object(callable), [](py::object* object) {
      const py::gil_scoped_acquire acquire;
      delete object;
    });
    callback = [held](LogLevel level, std::string_view message) {
      const py::gil_scoped_acquire acquire;
      try {
        (*held)(level_name(level), to_str(message));
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("a powerinfer_py log callback");
      }
    };
  }
  const py::gil_scoped_release release;
  powerinfer::set_log_callback(std::move(callback));
}

}  // namespace

void bind_log(py::module_& module) {
  module.def("set_log_callback", set_callback, py::arg("callback").none(true),
             "Installs callback(level: 'debug' | 'info' | 'warning', message: str); None makes the library silent.");
  // The library outlives the interpreter; a callback into it must not.
  py::module_::import("atexit").attr("register")(py::cpp_function([] { set_callback(py::none()); }));
}

}  // namespace powerinfer::bindings
