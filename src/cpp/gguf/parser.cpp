#include "gguf/parser.h"

#include <bit>

#include "base/text.h"
#include "gguf/format.h"
#include "powerinfer/error.h"

namespace powerinfer::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie in the file");

/// What other kinds of file begin with, for people who give the wrong one.
struct KnownStart {
  std::string_view bytes;
  std::string_view hint;
};
constexpr KnownStart kKnownStarts[] = {
    {"vers", "this looks like a Git LFS pointer: fetch the real file with 'git lfs pull'"},
    {"PK\x03\x04", "this looks like a PyTorch or zip file: convert the model to GGUF first"},
    {"tjgg", "this is a model format from before GGUF: get a GGUF file of the model"},
    {"fmgg", "this is a model format from before GGUF: get a GGUF file of the model"},
    {"lmgg", "this is a model format from before GGUF: get a GGUF file of the model"},
    {"<!DO", "this is a web page, not a model: check the download address"},
};

void parse_magic(Cursor& cursor, ParsedFile& out) {
  const auto* start = reinterpret_cast<const char*>(cursor.take(4, "the magic bytes"));
  const std::string_view magic(start, 4);
  out.has_powerinfer_magic = magic == kMagicPowerInfer;
  if (out.has_powerinfer_magic || magic == kMagicGguf) return;
  std::string_view hint = "this is not a GGUF file: check the path";
  for (const KnownStart& known : kKnownStarts) {
    if (known.bytes == magic) hint = known.hint;
  }
  cursor.fail(base::text("expected the magic bytes 'GGUF' or 'PWRI', got '", base::printable(magic), "'; ", hint));
}

std::uint32_t parse_version(Cursor& cursor) {
  const auto version = cursor.number<std::uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  const std::string where(cursor.file());
  if (version == 0) cursor.fail("expected version 2 or 3, got 0; the file is damaged: download it again");
  if ((version & 0xFFFFU) == 0) {
    throw UnsupportedError(base::text(where, ": version 0x", std::hex, version,
                                      ": the file is big-endian; expected little-endian: convert it"));
  }
  throw UnsupportedError(base::text(
      where, ": expected GGUF version 2 or 3, got ", version,
      version == 1 ? "; convert the model again with current tools" : "; a newer version of this package may read it"));
}

std::uint64_t find_alignment(const ParsedFile& parsed, const Cursor& cursor) {
  for (const auto& [key, value] : parsed.metadata) {
    if (key != kAlignmentKey) continue;
    const auto* scalar = std::get_if<GgufScalar>(&value);
    const auto* alignment = scalar != nullptr ? std::get_if<std::uint32_t>(scalar) : nullptr;
    if (alignment == nullptr) {
      cursor.fail(base::text("key '", kAlignmentKey, "': expected u32, got ", value_kind(value)));
    }
    if (!is_valid_alignment(*alignment)) {
      cursor.fail(base::text("key '", kAlignmentKey, "': expected a power of two from ", kMinAlignment, " to ",
                             kMaxAlignment, ", got ", *alignment, "; the file is damaged: download it again"));
    }
    return *alignment;
  }
  return kDefaultAlignment;
}

void parse_start(Cursor& cursor, ParsedFile& out) {
  if (cursor.remaining() == 0) cursor.fail("the file is empty: download it again");
  parse_magic(cursor, out);
  out.version = parse_version(cursor);
}

}  // namespace

void check_start(std::span<const std::byte> start, std::string_view file) {
  Cursor cursor(start, file);
  ParsedFile ignored;
  parse_start(cursor, ignored);
}

ParsedFile parse(std::span<const std::byte> bytes, std::string_view file) {
  Cursor cursor(bytes, file);
  ParsedFile out;
  parse_start(cursor, out);
  const std::size_t n_tensors = cursor.count("number of tensors", kMinTensorInfoBytes);
  const std::size_t n_entries = cursor.count("number of metadata entries", kMinEntryBytes);
  parse_metadata(cursor, n_entries, out);
  out.alignment = find_alignment(out, cursor);
  parse_tensors(cursor, n_tensors, bytes.size(), out);
  return out;
}

}  // namespace powerinfer::gguf
