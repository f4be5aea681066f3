// Seeded damage for files: the same seed gives the same mutant on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace pi_fuzz {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : state_(seed) {}

  /// A copy of `original` with one change (every second mutant) or up to four. Three of four changes hit the first
  /// `focus_bytes`, where the structure of a file is; the rest any byte.
  std::string mutate(std::string_view original, std::size_t focus_bytes) {
    std::string bytes(original);
    focus_ = focus_bytes;
    const std::uint64_t n_changes = below(2) == 0 ? 1 : 1 + below(4);
    for (std::uint64_t i = 0; i < n_changes && !bytes.empty(); ++i) change(bytes);
    return bytes;
  }

 private:
  /// splitmix64 (Steele, Lea, Flood 2014): defined bit for bit, unlike the distributions of the standard library.
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }

  std::size_t position(const std::string& bytes) {
    const std::size_t range = below(4) != 0 ? std::min(focus_, bytes.size()) : bytes.size();
    return static_cast<std::size_t>(below(std::max<std::size_t>(range, 1)));
  }
  std::size_t length(const std::string& bytes, std::size_t begin) {
    return static_cast<std::size_t>(1 + below(std::min<std::uint64_t>(bytes.size() - begin, 256)));
  }

  std::uint64_t interesting(const std::string& bytes) {
    static constexpr std::uint64_t kValues[] = {
        0,          1,          2,          3,          4,          7,          8,           9,
        12,         13,         16,         17,         31,         32,         33,          64,
        127,        128,        255,        256,        0x7FFF,     0xFFFF,     0x10000,     0x7FFFFFFF,
        0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0x7FC00000, 0x7F800000, 0xFF800000, 0x100000000, 0x7FFFFFFFFFFFFFFF,
        1ULL << 63, 1ULL << 62, 1ULL << 40, ~1ULL,      ~31ULL,     ~0ULL};
    constexpr std::uint64_t kCount = sizeof(kValues) / sizeof(kValues[0]);
    const std::uint64_t choice = below(kCount + 2);
    return choice < kCount ? kValues[choice] : bytes.size() + choice - kCount;
  }

  template <class T>
  void replace_number(std::string& bytes) {
    if (bytes.size() < sizeof(T)) return;
    const std::size_t at = std::min(position(bytes), bytes.size() - sizeof(T));
    T number;
    std::memcpy(&number, bytes.data() + at, sizeof(T));
    number = below(3) == 0 ? static_cast<T>(number + below(17) - 8) : static_cast<T>(interesting(bytes));
    std::memcpy(bytes.data() + at, &number, sizeof(T));
  }

  void swap_blocks(std::string& bytes) {
    const std::size_t a = position(bytes);
    const std::size_t b = position(bytes);
    const std::size_t n = std::min(length(bytes, std::max(a, b)), a < b ? b - a : a - b);
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a), bytes.begin() + static_cast<std::ptrdiff_t>(a + n),
                     bytes.begin() + static_cast<std::ptrdiff_t>(b));
  }

  void copy_block(std::string& bytes, std::size_t begin) {
    const std::string block = bytes.substr(begin, length(bytes, begin));
    bytes.insert(position(bytes), block);
  }
  void fill_block(std::string& bytes, std::size_t begin) {
    const std::size_t n = length(bytes, begin);
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), n, below(2) != 0 ? '\xFF' : '\0');
  }

  void change(std::string& bytes) {
    const std::size_t at = position(bytes);
    // Changes that move what follows are rarer: hardly anything of the file's meaning survives them.
    switch (below(14)) {
      case 0:
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
      case 3:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 4:
      case 5:
      case 6:
        replace_number<std::uint32_t>(bytes);
        break;
      case 7:
      case 8:
        replace_number<std::uint64_t>(bytes);
        break;
      case 9:
        bytes.resize(at);
        break;
      case 10:
        swap_blocks(bytes);
        break;
      case 11:
        bytes.erase(at, length(bytes, at));
        break;
      case 12:
        copy_block(bytes, at);
        break;
      default:
        fill_block(bytes, at);
        break;
    }
  }

  std::uint64_t state_;
  std::size_t focus_ = 0;
};

}  // namespace pi_fuzz
