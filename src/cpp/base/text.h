// Building messages from pieces (g++ 12 has no std::format).
#pragma once

#include <sstream>
#include <string>

namespace powerinfer::base {

/// Concatenates anything that has an ostream operator.
template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

}  // namespace powerinfer::base
