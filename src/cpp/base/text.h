// Building messages from pieces (g++ 12 has no std::format).
#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>

namespace powerinfer::base {

/// Concatenates anything that has an ostream operator.
template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

/// Bytes of an untrusted file as plain ASCII for a message: everything else as \xNN, long ones cut. Messages must stay
/// valid UTF-8 on one line, whatever the file holds.
std::string printable(std::string_view bytes, std::size_t max_bytes = 96);

}  // namespace powerinfer::base
