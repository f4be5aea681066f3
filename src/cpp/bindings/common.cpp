// Conversions and the interruptible call of common.h.
#include "common.h"

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

namespace powerinfer::bindings {

void run_interruptible(Context& context, const std::function<void()>& work) {
  constexpr auto kSignalInterval = std::chrono::milliseconds(30);
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr error;
  std::optional<py::error_already_set> interrupt;
  {
    const py::gil_scoped_release release;
    std::thread worker([&] {
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      done = true;
      ended.notify_one();
    });
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kSignalInterval, [&] { return done; })) {
      if (interrupt) continue;
      lock.unlock();
      {
        const py::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) interrupt.emplace();
      }
      lock.lock();
      if (interrupt && !done) context.cancel();
    }
    lock.unlock();
    worker.join();
  }
  if (interrupt) {
    context.clear_cancel();  // the work may have ended before it looked
    throw py::error_already_set(std::move(*interrupt));
  }
  if (error) std::rethrow_exception(error);
}

namespace {

Token token_from(std::int64_t value) {
  if (value < std::numeric_limits<Token>::min() || value > std::numeric_limits<Token>::max()) {
    throw InvalidArgument(std::to_string(value) + " is no token id");
  }
  return static_cast<Token>(value);
}

}  // namespace

std::vector<Token> tokens_from(py::handle object) {
  if (py::isinstance<py::str>(object) || py::isinstance<py::bytes>(object)) {
    throw py::type_error("expected a sequence of token ids, got text; tokenize it first");
  }
  std::vector<Token> tokens;
  if (py::isinstance<py::array>(object)) {
    const auto array = py::reinterpret_borrow<py::array>(object);
    if (array.ndim() != 1) throw InvalidArgument("token ids: expected an array of one dimension");
    if (array.dtype().kind() != 'i' && array.dtype().kind() != 'u') {
      throw py::type_error("token ids: expected an array of integers");
    }
    if (array.dtype().is(py::dtype::of<Token>()) && array.strides(0) == sizeof(Token)) {
      const auto* data = static_cast<const Token*>(array.data());
      return {data, data + array.size()};
    }
  }
  for (const py::handle item : py::iter(object)) {
    int overflow = 0;
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
    if (!index) throw py::error_already_set();
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0) throw InvalidArgument(py::str(index).cast<std::string>() + " is no token id");
    tokens.push_back(token_from(value));
  }
  return tokens;
}

py::str to_str(std::string_view text) {
  PyObject* result = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace");
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(result);
}

py::array_t<float> to_array(std::span<const float> values, std::vector<py::ssize_t> shape) {
  py::array_t<float> array(std::move(shape));
  std::copy(values.begin(), values.end(), array.mutable_data());
  return array;
}

std::vector<float> thresholds_from(const py::object& object) {
  if (object.is_none()) return {};
  if (PyNumber_Check(object.ptr()) != 0 && PySequence_Check(object.ptr()) == 0) return {object.cast<float>()};
  return object.cast<std::vector<float>>();
}

DType dtype_from(std::string_view name) {
  std::string known;
  for (const DType type : kAllDTypes) {
    if (name == dtype_name(type)) return type;
    known += std::string(known.empty() ? "" : ", ") + dtype_name(type);
  }
  throw UnsupportedError("type '" + std::string(name) + "' is not supported; supported: " + known);
}

}  // namespace powerinfer::bindings
