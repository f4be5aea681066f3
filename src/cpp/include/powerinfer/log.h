// Version and the one log callback. The library never prints by itself.
#pragma once

#include <functional>
#include <string_view>

namespace powerinfer {

/// Version of the linked library, e.g. "0.1.0".
const char* version() noexcept;

enum class LogLevel { kDebug, kInfo, kWarning };

using LogCallback = std::function<void(LogLevel, std::string_view message)>;

/// Installs the receiver of log messages; an empty function makes the library silent (the default).
/// May be called from any thread; the callback itself may be called from any thread that uses the library.
void set_log_callback(LogCallback callback);

}  // namespace powerinfer
