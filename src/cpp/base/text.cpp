#include "base/text.h"

namespace powerinfer::base {

std::string printable(std::string_view bytes, std::size_t max_bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  const std::size_t n = bytes.size() < max_bytes ? bytes.size() : max_bytes;
  for (std::size_t i = 0; i < n; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte >= 0x20 && byte < 0x7F && byte != '\\') {
      out += bytes[i];
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15U]};
    }
  }
  if (n < bytes.size()) out += text("... (", bytes.size(), " bytes)");
  return out;
}

}  // namespace powerinfer::base
