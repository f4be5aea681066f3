// What the binding units share: the objects behind the Python classes and the conversions between Python and C++.
// The units include public headers only; everything that Python sees is named here or in its own bind_*.cpp.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "powerinfer/context.h"
#include "powerinfer/error.h"
#include "powerinfer/generate.h"
#include "powerinfer/gguf.h"
#include "powerinfer/model.h"
#include "powerinfer/sampler.h"

namespace powerinfer::bindings {

namespace py = pybind11;

/// Refuses a second thread with a StateError for as long as it lives.
class BusyGuard {
 public:
  BusyGuard(std::atomic<bool>& flag, const char* what) : flag_(flag) {
    if (flag_.exchange(true)) throw StateError(std::string(what) + " is in use by another thread");
  }
  ~BusyGuard() { flag_ = false; }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic<bool>& flag_;
};

struct PyModel {
  std::shared_ptr<const Model> model;
};

struct PySampler {
  explicit PySampler(Sampler chain) : sampler(std::move(chain)) {}
  Sampler sampler;
  std::atomic<bool> busy{false};
};

class CallableMask;

struct PyContext {
  PyContext(const PyModel& model, const ContextOptions& options);
  ~PyContext();
  std::map<TapPoint, std::shared_ptr<TapSink>> taps;  // outlive the context that calls them
  std::unique_ptr<CallableMask> mask;
  Context context;
};

/// Runs `work` (a call into `context`, without the GIL) so that signal handlers run meanwhile: the work moves to a
/// helper thread while this one looks for signals. When a handler raises (Ctrl-C), the context is cancelled and the
/// handler's exception is thrown once the work has ended.
void run_interruptible(Context& context, const std::function<void()>& work);

/// Token ids from an integer array or a sequence of ints. Throws InvalidArgument on an id that is no int32, TypeError
/// on anything else.
std::vector<Token> tokens_from(py::handle object);

/// UTF-8 to str; what is not UTF-8 becomes U+FFFD.
py::str to_str(std::string_view text);

/// A copy as a float32 array of this shape.
py::array_t<float> to_array(std::span<const float> values, std::vector<py::ssize_t> shape);

/// One float or a sequence of them; None is empty.
std::vector<float> thresholds_from(const py::object& object);

/// All element types this build knows.
inline constexpr std::array kAllDTypes{DType::kF32,  DType::kF16,  DType::kQ4_0, DType::kQ4_1,
                                       DType::kQ5_0, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K,
                                       DType::kQ6_K, DType::kI32,  DType::kBF16};
/// Throws UnsupportedError with the list of names.
DType dtype_from(std::string_view name);

void bind_errors(py::module_& module);
void bind_log(py::module_& module);
void bind_gguf(py::module_& module);
void bind_gguf_writer(py::module_& module);
void bind_quant(py::module_& module);
void bind_tokenizer(py::module_& module);
void bind_model(py::module_& module);
void bind_sampler(py::module_& module);
void bind_sinks(py::module_& module);
void bind_context(py::module_& module);
void bind_generator(py::module_& module);

}  // namespace powerinfer::bindings
