// A position in the untrusted bytes of a file. Every read is checked against what remains; every failure is a
// FormatError that says where it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace powerinfer::gguf {

class Cursor {
 public:
  /// `file` is how messages call the file. Both must outlive the cursor.
  Cursor(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }
  std::string_view file() const { return file_; }

  /// What is being read, for messages: "metadata entry 3 of 20", "key 'general.name'".
  void set_place(std::string place) { place_ = std::move(place); }
  const std::string& place() const { return place_; }

  /// Throws FormatError "<file>: <place>: <what>".
  [[noreturn]] void fail(std::string_view what) const;

  /// The next `n` bytes; `what` names them for the message.
  const std::byte* take(std::uint64_t n, std::string_view what);

  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  /// A 64-bit length and that many bytes. Valid as long as the file's bytes.
  std::string_view string(std::string_view what);

  /// A 64-bit count of things that take at least `min_bytes` each in the file, so that nothing is reserved for more
  /// than the file can hold.
  std::size_t count(std::string_view what, std::size_t min_bytes);

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::string place_;
  std::size_t position_ = 0;
};

}  // namespace powerinfer::gguf
