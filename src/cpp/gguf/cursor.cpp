#include "gguf/cursor.h"

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::gguf {

void Cursor::fail(std::string_view what) const {
  throw FormatError(base::text(file_, ": ", place_, place_.empty() ? "" : ": ", what));
}

const std::byte* Cursor::take(std::uint64_t n, std::string_view what) {
  if (n > remaining()) {
    fail(base::text("the file ends inside ", what, ": expected ", n, " bytes at offset ", position_, ", got ",
                    remaining(), "; the file is truncated or damaged: download it again"));
  }
  const std::byte* bytes = bytes_.data() + position_;
  position_ += static_cast<std::size_t>(n);
  return bytes;
}

std::string_view Cursor::string(std::string_view what) {
  const auto length = number<std::uint64_t>(what);
  return {reinterpret_cast<const char*>(take(length, what)), static_cast<std::size_t>(length)};
}

std::size_t Cursor::count(std::string_view what, std::size_t min_bytes) {
  const auto n = number<std::uint64_t>(what);
  if (n > remaining() / min_bytes) {
    fail(base::text(what, ": expected at most ", remaining() / min_bytes, " (what the ", remaining(),
                    " bytes left can hold), got ", n, "; the file is truncated or damaged: download it again"));
  }
  return static_cast<std::size_t>(n);
}

}  // namespace powerinfer::gguf
