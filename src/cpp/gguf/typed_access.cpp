// GgufFile's typed getters: a key that is present must be what the caller expects.
#include <type_traits>
#include <utility>

#include "base/text.h"
#include "gguf/format.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"

namespace powerinfer {
namespace {

template <class T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

[[noreturn]] void fail(const GgufFile& file, std::string_view key, std::string_view expected, std::string_view got) {
  throw FormatError(base::text(file.path().string(), ": key '", base::printable(key), "': expected ", expected,
                               ", got ", got, "; re-run the conversion"));
}

/// The integer `value` as To, or a FormatError that says what did not fit.
template <class To, class From>
To fit(const GgufFile& file, std::string_view key, std::string_view expected, From value) {
  if (!std::in_range<To>(value)) fail(file, key, expected, base::text(+value));
  return static_cast<To>(value);
}

template <class To>
std::optional<To> find_integer(const GgufFile& file, std::string_view key, std::string_view expected) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return std::nullopt;
  const auto* scalar = std::get_if<GgufScalar>(value);
  if (scalar == nullptr) fail(file, key, expected, gguf::value_kind(*value));
  return std::visit(
      [&](const auto& number) -> To {
        using From = std::decay_t<decltype(number)>;
        if constexpr (kIsInteger<From>) {
          return fit<To>(file, key, expected, number);
        } else {
          fail(file, key, expected, gguf::value_kind(*value));
        }
      },
      *scalar);
}

/// The scalar or array of exactly this type; null when the key is absent.
template <class Variant, class T>
const T* find_exact(const GgufFile& file, std::string_view key, std::string_view expected) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return nullptr;
  const auto* variant = std::get_if<Variant>(value);
  const T* found = variant != nullptr ? std::get_if<T>(variant) : nullptr;
  if (found == nullptr) fail(file, key, expected, gguf::value_kind(*value));
  return found;
}

}  // namespace

std::optional<std::uint32_t> GgufFile::find_u32(std::string_view key) const {
  return find_integer<std::uint32_t>(*this, key, "an unsigned 32-bit integer");
}

std::optional<std::uint64_t> GgufFile::find_u64(std::string_view key) const {
  return find_integer<std::uint64_t>(*this, key, "an unsigned 64-bit integer");
}

std::optional<float> GgufFile::find_f32(std::string_view key) const {
  const auto* value = find_exact<GgufScalar, float>(*this, key, "f32");
  return value != nullptr ? std::optional<float>(*value) : std::nullopt;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const auto* value = find_exact<GgufScalar, bool>(*this, key, "bool");
  return value != nullptr ? std::optional<bool>(*value) : std::nullopt;
}

const std::string* GgufFile::find_string(std::string_view key) const {
  return find_exact<GgufScalar, std::string>(*this, key, "string");
}

const std::vector<std::string>* GgufFile::find_strings(std::string_view key) const {
  return find_exact<GgufArray, std::vector<std::string>>(*this, key, "array of string");
}

const std::vector<float>* GgufFile::find_floats(std::string_view key) const {
  return find_exact<GgufArray, std::vector<float>>(*this, key, "array of f32");
}

std::optional<std::vector<std::int32_t>> GgufFile::find_i32s(std::string_view key) const {
  constexpr std::string_view kExpected = "array of integers that fit into 32 bits";
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr) fail(*this, key, kExpected, gguf::value_kind(*value));
  return std::visit(
      [&](const auto& numbers) -> std::vector<std::int32_t> {
        using From = typename std::decay_t<decltype(numbers)>::value_type;
        if constexpr (kIsInteger<From>) {
          std::vector<std::int32_t> out;
          out.reserve(numbers.size());
          for (const From number : numbers) out.push_back(fit<std::int32_t>(*this, key, kExpected, number));
          return out;
        } else {
          fail(*this, key, kExpected, gguf::value_kind(*value));
        }
      },
      *array);
}

}  // namespace powerinfer
