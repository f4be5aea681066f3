#include "quant/dtype.h"

#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "powerinfer/error.h"
#include "quant/formats.h"
#include "quant/quantize.h"
#include "quant/scalar.h"

namespace powerinfer::quant {
namespace {

struct Tag {};
using Scalar = ScalarVocabulary<Tag>;

struct Codec {
  DTypeTraits traits;
  void (*dequantize)(const std::uint8_t* data, std::size_t n, float* out);  // null: not a weight
  // importance may be null; null: no rule
  void (*quantize)(const float* x, const float* importance, std::size_t n_blocks, std::uint8_t* out);
};

template <class Format>
void dequantize_as(const std::uint8_t* data, std::size_t n, float* out) {
  // Sub-blocks of 32; only formats of single values can have a shorter last one.
  for (std::size_t begin = 0; begin < n; begin += 32) {
    const auto values = Format::template values<Scalar>(data, begin / 32);
    const std::size_t count = n - begin < 32 ? n - begin : 32;
    for (std::size_t i = 0; i < count; ++i) out[begin + i] = values.at(i);
  }
}

template <class Format>
constexpr bool kHasRule = requires(const float* x, std::uint8_t* out) { Format::quantize(x, out); };
template <class Format>
constexpr bool kHasSearch = requires(const float* x, std::uint8_t* out) { Format::quantize(x, x, out); };

template <class Format>
void quantize_as(const float* x, const float* importance, std::size_t n_blocks, std::uint8_t* out) {
  for (std::size_t i = 0; i < n_blocks; ++i) {
    const float* values = x + i * Format::kBlockLen;
    std::uint8_t* block = out + i * Format::kBlockBytes;
    if constexpr (kHasSearch<Format>) {
      if (importance != nullptr || !kHasRule<Format>) {
        Format::quantize(values, importance == nullptr ? nullptr : importance + i * Format::kBlockLen, block);
        continue;
      }
    }
    if constexpr (kHasRule<Format>) Format::quantize(values, block);
  }
}

template <class Format>
constexpr Codec make_codec() {
  Codec codec{};
  codec.traits = {static_cast<DType>(Format::kType),
                  Format::kName,
                  Format::kBlockLen,
                  Format::kBlockBytes,
                  Format::kIsWeight,
                  Format::kInt8Input};
  if constexpr (Format::kIsWeight) codec.dequantize = dequantize_as<Format>;
  if constexpr (kHasRule<Format> || kHasSearch<Format>) codec.quantize = quantize_as<Format>;
  return codec;
}

template <class... Formats>
constexpr std::array<Codec, sizeof...(Formats)> make_codecs(FormatList<Formats...>) {
  return {make_codec<Formats>()...};
}

constexpr std::array<Codec, kNumDTypes> kCodecs = make_codecs(AllFormats{});

const Codec& codec(DType type) noexcept { return kCodecs[dtype_index(type)]; }

void check_length(const DTypeTraits& traits, std::size_t n, const char* what) {
  if (n % traits.block_len != 0) {
    throw InvalidArgument(base::text(what, ": ", traits.name, " holds blocks of ", traits.block_len, " values, got ", n,
                                     " values; use a multiple of ", traits.block_len));
  }
}

/// Names of GGML's types by number, as its tools print them; null: retired or never given.
constexpr const char* kGgmlNames[] = {
    "F32",   "F16",    "Q4_0",  "Q4_1",  nullptr, nullptr,   "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",   "I64",     "F64",    "IQ1_M",   "BF16",  nullptr,  nullptr,
    nullptr, "TQ1_0",  "TQ2_0", nullptr, nullptr, nullptr,   "MXFP4",  "NVFP4"};

}  // namespace

const DTypeTraits* find_traits(std::uint32_t ggml_type) noexcept {
  for (const Codec& entry : kCodecs) {
    if (static_cast<std::uint32_t>(entry.traits.type) == ggml_type) return &entry.traits;
  }
  return nullptr;
}

std::size_t dtype_index(DType type) noexcept {
  for (std::size_t i = 0; i < kCodecs.size(); ++i) {
    if (kCodecs[i].traits.type == type) return i;
  }
  PI_DCHECK(false);  // a DType that is not in the list of formats
  return 0;
}

const DTypeTraits& traits(DType type) noexcept { return codec(type).traits; }

const std::string& supported_dtypes() {
  static const std::string names = [] {
    std::string list;
    for (const Codec& entry : kCodecs) list += base::text(list.empty() ? "" : ", ", entry.traits.name);
    return list;
  }();
  return names;
}

std::string ggml_type_name(std::uint32_t ggml_type) {
  if (ggml_type < std::size(kGgmlNames) && kGgmlNames[ggml_type] != nullptr) return kGgmlNames[ggml_type];
  return base::text("type ", ggml_type);
}

bool can_quantize(DType type) noexcept { return codec(type).quantize != nullptr; }

void quantize(DType type, const float* x, std::size_t n, void* out, const float* importance) {
  const Codec& entry = codec(type);
  check_length(entry.traits, n, "quantize");
  if (entry.quantize == nullptr) {
    throw UnsupportedError(
        base::text("quantize: no rule to make ", entry.traits.name, " from floats; use Q8_0 or F16"));
  }
  entry.quantize(x, importance, n / entry.traits.block_len, static_cast<std::uint8_t*>(out));
}

}  // namespace powerinfer::quant

namespace powerinfer {

const char* dtype_name(DType type) noexcept {
  const quant::DTypeTraits* traits = quant::find_traits(static_cast<std::uint32_t>(type));
  return traits == nullptr ? "unknown" : traits->name;
}

std::size_t dtype_block_length(DType type) noexcept { return quant::traits(type).block_len; }

std::size_t dtype_row_bytes(DType type, std::size_t n_cols) {
  const quant::DTypeTraits& traits = quant::traits(type);
  quant::check_length(traits, n_cols, "row size");
  const std::size_t n_blocks = n_cols / traits.block_len;
  if (n_blocks > std::numeric_limits<std::size_t>::max() / traits.block_bytes) {
    throw InvalidArgument(base::text("row size: ", n_cols, " columns of ", traits.name, " exceed the address space"));
  }
  return n_blocks * traits.block_bytes;
}

void dequantize(DType type, const void* data, std::size_t n, float* out) {
  const quant::Codec& codec = quant::codec(type);
  quant::check_length(codec.traits, n, "dequantize");
  if (codec.dequantize == nullptr) {
    throw InvalidArgument(base::text("dequantize: ", codec.traits.name, " holds indices, not weights"));
  }
  codec.dequantize(static_cast<const std::uint8_t*>(data), n, out);
}

}  // namespace powerinfer
