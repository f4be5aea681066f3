// GgufFile: the opened file and lookups in it.
#include <new>

#include "base/mapped_file.h"
#include "base/text.h"
#include "gguf/parser.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"

namespace powerinfer {

struct GgufFile::Impl {
  std::filesystem::path path;
  base::MappedFile file;
  gguf::ParsedFile parsed;
};

GgufFile::GgufFile(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

GgufFile GgufFile::open(const std::filesystem::path& path, FileAccess access) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  if (access == FileAccess::kRead) {
    // Before all of it is read: it may be large, and no model.
    const base::MappedFile start = base::MappedFile::read(path, gguf::kStartBytes);
    gguf::check_start({start.data(), start.size()}, path.string());
  }
  impl->file = access == FileAccess::kMmap ? base::MappedFile::map(path) : base::MappedFile::read(path);
  try {
    impl->parsed = gguf::parse({impl->file.data(), impl->file.size()}, path.string());
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError(base::text(path.string(), ": not enough memory for the metadata of this file of ",
                                      impl->file.size(), " bytes; free some memory"));
  }
  return GgufFile(std::move(impl));
}

const std::filesystem::path& GgufFile::path() const { return impl_->path; }
std::uint32_t GgufFile::version() const { return impl_->parsed.version; }
bool GgufFile::has_powerinfer_magic() const { return impl_->parsed.has_powerinfer_magic; }
std::uint64_t GgufFile::alignment() const { return impl_->parsed.alignment; }
std::uint64_t GgufFile::n_bytes() const { return impl_->file.size(); }

std::span<const std::pair<std::string, GgufValue>> GgufFile::metadata() const { return impl_->parsed.metadata; }

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto& entries = impl_->parsed.metadata;
  const auto key_of = [&](std::size_t i) -> std::string_view { return entries[i].first; };
  const auto at = impl_->parsed.metadata_by_key.find(key, key_of);
  return at ? &entries[*at].second : nullptr;
}

std::span<const TensorInfo> GgufFile::tensors() const { return impl_->parsed.tensors; }

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto& tensors = impl_->parsed.tensors;
  const auto name_of = [&](std::size_t i) -> std::string_view { return tensors[i].name; };
  const auto at = impl_->parsed.tensors_by_name.find(name, name_of);
  return at ? &tensors[*at] : nullptr;
}

const std::byte* GgufFile::data(const TensorInfo& tensor) const { return impl_->file.data() + tensor.offset; }

}  // namespace powerinfer
