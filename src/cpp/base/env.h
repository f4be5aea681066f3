// Environment variables: the only place that reads them.
#pragma once

#include <optional>
#include <string>

namespace powerinfer::base {

/// The variable's value, or nothing when it is unset or empty.
std::optional<std::string> environment(const char* name);

}  // namespace powerinfer::base
