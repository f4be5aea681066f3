// Sending messages to the library's one log receiver.
#pragma once

#include <string_view>

#include "powerinfer/log.h"

namespace powerinfer::base {

/// Hands the message to the installed callback, if there is one. Thread-safe. What the callback throws is dropped: a
/// broken receiver must not break a computation.
void log(LogLevel level, std::string_view message);

}  // namespace powerinfer::base
