// From the bytes of a file to its validated header, metadata and tensor index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/cursor.h"
#include "gguf/name_index.h"
#include "powerinfer/gguf.h"

namespace powerinfer::gguf {

struct ParsedFile {
  std::uint32_t version = 0;
  bool has_powerinfer_magic = false;
  std::uint64_t alignment = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata;  // in file order
  NameIndex metadata_by_key;
  std::vector<TensorInfo> tensors;  // in file order
  NameIndex tensors_by_name;
};

// What check_start() looks at: magic and version.
inline constexpr std::size_t kStartBytes = 8;

/// Refuses what is no GGUF file of a known version by its first kStartBytes bytes (fewer: the whole file). Throws as
/// parse() does.
void check_start(std::span<const std::byte> start, std::string_view file);

/// Throws FormatError and UnsupportedError; `file` is how messages call the file.
ParsedFile parse(std::span<const std::byte> bytes, std::string_view file);

/// The parts of parse(), in the order of the file.
/// `elements_left`: array elements the file may still have; those of this value are taken off.
GgufValue parse_value(Cursor& cursor, std::size_t& elements_left);
void parse_metadata(Cursor& cursor, std::size_t n_entries, ParsedFile& out);
/// Reads the tensor table, then checks it against the data section that follows and fills in absolute offsets.
void parse_tensors(Cursor& cursor, std::size_t n_tensors, std::uint64_t file_bytes, ParsedFile& out);

// The least a metadata entry takes: key length and one character, type, one byte of value.
inline constexpr std::size_t kMinEntryBytes = 8 + 1 + 4 + 1;
// The least a tensor takes in the table: name length and one character, n_dims, one dimension, type, offset.
inline constexpr std::size_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;

}  // namespace powerinfer::gguf
