// A GGUF file written by hand, field by field, so that every field can be wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pi_test {

template <class T>
std::string raw(T number) {
  return {reinterpret_cast<const char*>(&number), sizeof(T)};
}
inline std::string u8(unsigned value) { return raw(static_cast<std::uint8_t>(value)); }
inline std::string u32(std::uint64_t value) { return raw(static_cast<std::uint32_t>(value)); }
inline std::string u64(std::uint64_t value) { return raw(value); }
inline std::string text(const std::string& value) { return u64(value.size()) + value; }

struct RawEntry {
  std::string key;    // with its length
  std::string value;  // type and content
};

struct RawTensor {
  std::string name;  // with its length
  std::string n_dims;
  std::string shape;
  std::string type;
  std::string offset;
};

inline RawTensor tensor(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                        std::uint64_t offset) {
  std::string sizes;
  for (const std::uint64_t size : shape) sizes += u64(size);
  return {text(name), u32(shape.size()), sizes, u32(type), u64(offset)};
}

struct RawFile {
  std::string magic = "GGUF";
  std::string version = u32(3);
  std::optional<std::uint64_t> n_tensors;  // what the header claims; the truth unless set
  std::optional<std::uint64_t> n_entries;
  std::vector<RawEntry> entries;
  std::vector<RawTensor> tensors;
  std::uint64_t alignment = 32;
  std::string data;

  std::string header() const {
    std::string out =
        magic + version + u64(n_tensors.value_or(tensors.size())) + u64(n_entries.value_or(entries.size()));
    for (const RawEntry& entry : entries) out += entry.key + entry.value;
    for (const RawTensor& t : tensors) out += t.name + t.n_dims + t.shape + t.type + t.offset;
    return out;
  }
  std::string bytes() const {
    std::string out = header();
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

/// Valid: one entry of each kind, three tensors (F32 4 x 3, Q8_0 32 x 2, I32 8), 256 bytes of data.
inline RawFile valid_file() {
  RawFile file;
  file.entries = {{text("general.architecture"), u32(8) + text("llama")},
                  {text("a.u32"), u32(4) + u32(7)},
                  {text("a.bool"), u32(7) + u8(1)},
                  {text("a.bools"), u32(9) + u32(7) + u64(3) + u8(0) + u8(1) + u8(1)},
                  {text("a.floats"), u32(9) + u32(6) + u64(2) + raw(1.5F) + raw(-2.0F)},
                  {text("a.strings"), u32(9) + u32(8) + u64(3) + text("x") + text("") + text("yy")}};
  file.tensors = {tensor("first.weight", {4, 3}, 0, 0), tensor("second.weight", {32, 2}, 8, 64),
                  tensor("third", {8}, 26, 160)};
  file.data = std::string(192, '\1');
  return file;
}

}  // namespace pi_test
