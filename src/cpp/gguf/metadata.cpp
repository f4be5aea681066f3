// Reading the metadata table.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "gguf/format.h"
#include "gguf/parser.h"
#include "powerinfer/error.h"

namespace powerinfer::gguf {
namespace {

bool to_bool(Cursor& cursor, std::uint8_t byte) {
  if (byte > 1) cursor.fail(base::text("expected a bool (0 or 1), got ", int{byte}));
  return byte == 1;
}

template <class T>
T parse_scalar(Cursor& cursor) {
  return cursor.number<T>("the value");
}
template <>
bool parse_scalar<bool>(Cursor& cursor) {
  return to_bool(cursor, cursor.number<std::uint8_t>("the value"));
}
template <>
std::string parse_scalar<std::string>(Cursor& cursor) {
  return std::string(cursor.string("the value"));
}

std::size_t parse_length(Cursor& cursor, std::size_t min_bytes, std::size_t& elements_left) {
  const std::size_t n = cursor.count("number of array elements", min_bytes);
  if (n > elements_left) {
    cursor.fail(base::text("expected arrays of at most ", kMaxArrayElements, " elements in the whole file, got ", n,
                           " more after ", kMaxArrayElements - elements_left,
                           "; the file is damaged or hostile: get it from a source you trust"));
  }
  elements_left -= n;
  return n;
}

template <class T>
std::vector<T> parse_elements(Cursor& cursor, std::size_t& elements_left) {
  const std::size_t n = parse_length(cursor, sizeof(T), elements_left);
  std::vector<T> values(n);
  const std::byte* bytes = cursor.take(n * sizeof(T), "the array");
  if (n > 0) std::memcpy(values.data(), bytes, n * sizeof(T));
  return values;
}
template <>
std::vector<bool> parse_elements<bool>(Cursor& cursor, std::size_t& elements_left) {
  std::vector<bool> values(parse_length(cursor, 1, elements_left));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = to_bool(cursor, cursor.number<std::uint8_t>("the array"));
  }
  return values;
}
template <>
std::vector<std::string> parse_elements<std::string>(Cursor& cursor, std::size_t& elements_left) {
  std::vector<std::string> values(parse_length(cursor, sizeof(std::uint64_t), elements_left));
  for (std::string& value : values) value = cursor.string("the array");
  return values;
}

ValueType parse_type(Cursor& cursor, const char* what) {
  const auto type = cursor.number<std::uint32_t>(what);
  if (type >= kNumValueTypes) {
    cursor.fail(base::text(what, ": expected a type number below ", kNumValueTypes, ", got ", type,
                           "; the file is damaged: download it again"));
  }
  return static_cast<ValueType>(type);
}

/// Calls visit.template operator()<T>() with the C++ type of a scalar or element.
template <class Visit>
GgufValue with_type(const Cursor& cursor, ValueType type, const Visit& visit) {
  switch (type) {
    case ValueType::kU8:
      return visit.template operator()<std::uint8_t>();
    case ValueType::kI8:
      return visit.template operator()<std::int8_t>();
    case ValueType::kU16:
      return visit.template operator()<std::uint16_t>();
    case ValueType::kI16:
      return visit.template operator()<std::int16_t>();
    case ValueType::kU32:
      return visit.template operator()<std::uint32_t>();
    case ValueType::kI32:
      return visit.template operator()<std::int32_t>();
    case ValueType::kF32:
      return visit.template operator()<float>();
    case ValueType::kBool:
      return visit.template operator()<bool>();
    case ValueType::kString:
      return visit.template operator()<std::string>();
    case ValueType::kU64:
      return visit.template operator()<std::uint64_t>();
    case ValueType::kI64:
      return visit.template operator()<std::int64_t>();
    case ValueType::kF64:
      return visit.template operator()<double>();
    case ValueType::kArray:
      break;
  }
  throw UnsupportedError(base::text(cursor.file(), ": ", cursor.place(),
                                    ": arrays of arrays are not supported; expected an array of numbers, bools or "
                                    "strings: re-run the conversion without this key"));
}

}  // namespace

GgufValue parse_value(Cursor& cursor, std::size_t& elements_left) {
  const ValueType type = parse_type(cursor, "value type");
  if (type == ValueType::kArray) {
    return with_type(cursor, parse_type(cursor, "array element type"), [&]<class T>() -> GgufValue {
      return GgufArray(std::in_place_type<std::vector<T>>, parse_elements<T>(cursor, elements_left));
    });
  }
  return with_type(cursor, type,
                   [&]<class T>() -> GgufValue { return GgufScalar(std::in_place_type<T>, parse_scalar<T>(cursor)); });
}

void parse_metadata(Cursor& cursor, std::size_t n_entries, ParsedFile& out) {
  std::size_t elements_left = kMaxArrayElements;
  for (std::size_t i = 0; i < n_entries; ++i) {
    cursor.set_place(base::text("metadata entry ", i + 1, " of ", n_entries));
    const std::string_view key = cursor.string("the key");
    if (const char* fault = name_fault(key, kMaxKeyBytes)) {
      cursor.fail(base::text("the key ", fault, " (", key.size(), " bytes; expected 1 to ", kMaxKeyBytes,
                             " bytes, none of them zero): '", base::printable(key), "'"));
    }
    cursor.set_place(base::text("key '", base::printable(key), "'"));
    out.metadata.emplace_back(key, parse_value(cursor, elements_left));
  }
  const auto key_of = [&](std::size_t i) -> std::string_view { return out.metadata[i].first; };
  out.metadata_by_key = NameIndex(n_entries, key_of);
  cursor.set_place("metadata");
  if (const auto twice = out.metadata_by_key.duplicate(key_of)) {
    cursor.fail(base::text("expected every key once, got '", base::printable(key_of(*twice)),
                           "' twice; re-run the conversion"));
  }
}

}  // namespace powerinfer::gguf
