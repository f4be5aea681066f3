// Names to positions in a list. Sorted, not hashed: a hostile file cannot choose names that make it slow.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

namespace powerinfer::gguf {

class NameIndex {
 public:
  NameIndex() = default;

  /// `name_of(i)` gives the name of entry i < n.
  template <class NameOf>
  NameIndex(std::size_t n, const NameOf& name_of) : order_(n) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    // Ties by position, so that the second of two equal names is the later one.
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      const auto order = name_of(a) <=> name_of(b);
      return order != 0 ? order < 0 : a < b;
    });
  }

  /// Position of the second of two entries with the same name.
  template <class NameOf>
  std::optional<std::size_t> duplicate(const NameOf& name_of) const {
    const auto same = std::adjacent_find(order_.begin(), order_.end(),
                                         [&](std::size_t a, std::size_t b) { return name_of(a) == name_of(b); });
    if (same == order_.end()) return std::nullopt;
    return *std::next(same);
  }

  template <class NameOf>
  std::optional<std::size_t> find(std::string_view name, const NameOf& name_of) const {
    const auto at = std::lower_bound(order_.begin(), order_.end(), name,
                                     [&](std::size_t i, std::string_view key) { return name_of(i) < key; });
    if (at == order_.end() || name_of(*at) != name) return std::nullopt;
    return *at;
  }

 private:
  std::vector<std::size_t> order_;
};

}  // namespace powerinfer::gguf
