#include "base/log.h"

#include <memory>
#include <mutex>
#include <utility>

namespace powerinfer {
namespace {

struct Receiver {
  std::mutex mutex;
  std::shared_ptr<const LogCallback> callback;
};

/// Never destroyed: threads may still log while the process ends, and a callback may belong to a runtime (Python's)
/// that is gone by then.
Receiver& receiver() {
  static auto& instance = *new Receiver;
  return instance;
}

}  // namespace

const char* version() noexcept { return POWERINFER_VERSION; }

void set_log_callback(LogCallback callback) {
  std::shared_ptr<const LogCallback> next;
  if (callback) next = std::make_shared<const LogCallback>(std::move(callback));
  // The old callback is destroyed after the lock is gone: its destructor may do anything, even log.
  const std::lock_guard lock(receiver().mutex);
  std::swap(receiver().callback, next);
}

namespace base {

void log(LogLevel level, std::string_view message) {
  std::shared_ptr<const LogCallback> callback;
  {
    const std::lock_guard lock(receiver().mutex);
    callback = receiver().callback;
  }
  if (callback == nullptr) return;
  try {
    (*callback)(level, message);
  } catch (...) {  // see the contract
  }
}

}  // namespace base
}  // namespace powerinfer
