#include "ops/activation.h"

#include <charconv>
#include <cmath>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::ops {

namespace {

using backend::Activation;
using backend::ActivationKind;

// Comparisons are written so that NaN passes through instead of turning into zero.
void relu(const Activation&, const kernels::KernelTable&, std::size_t n, float* x) noexcept {
  for (std::size_t i = 0; i < n; ++i) x[i] = x[i] <= 0.0F ? 0.0F : x[i];
}
void relu2(const Activation&, const kernels::KernelTable&, std::size_t n, float* x) noexcept {
  for (std::size_t i = 0; i < n; ++i) x[i] = x[i] <= 0.0F ? 0.0F : x[i] * x[i];
}
void fatrelu(const Activation& activation, const kernels::KernelTable&, std::size_t n, float* x) noexcept {
  for (std::size_t i = 0; i < n; ++i) x[i] = x[i] < activation.param ? 0.0F : x[i];
}
void silu(const Activation&, const kernels::KernelTable& kernels, std::size_t n, float* x) noexcept {
  kernels.silu(n, x);
}
void gelu(const Activation&, const kernels::KernelTable&, std::size_t n, float* x) noexcept {
  constexpr float kInverseSqrt2 = 0.70710678118654752F;
  for (std::size_t i = 0; i < n; ++i) x[i] = 0.5F * x[i] * std::erfc(-x[i] * kInverseSqrt2);
}
void gelu_tanh(const Activation&, const kernels::KernelTable& kernels, std::size_t n, float* x) noexcept {
  kernels.gelu_tanh(n, x);
}

struct Entry {
  ActivationKind kind;
  const char* name;
  bool true_zeros;
  bool has_param;
  void (*apply)(const Activation&, const kernels::KernelTable&, std::size_t, float*) noexcept;
};

constexpr Entry kTable[] = {
    {ActivationKind::kRelu, "relu", true, false, relu},
    {ActivationKind::kRelu2, "relu2", true, false, relu2},
    {ActivationKind::kDrelu, "drelu", true, false, relu},
    {ActivationKind::kFatrelu, "fatrelu", true, true, fatrelu},
    {ActivationKind::kSilu, "silu", false, false, silu},
    {ActivationKind::kGelu, "gelu", false, false, gelu},
    {ActivationKind::kGeluTanh, "gelu_tanh", false, false, gelu_tanh},
};

const Entry& entry_of(ActivationKind kind) noexcept {
  for (const Entry& entry : kTable) {
    if (entry.kind == kind) return entry;
  }
  return kTable[0];  // unreachable: the table lists every kind
}

}  // namespace

void activate(const Activation& activation, const kernels::KernelTable& kernels, std::size_t n, float* x) noexcept {
  entry_of(activation.kind).apply(activation, kernels, n, x);
}

bool has_true_zeros(const Activation& activation) noexcept { return entry_of(activation.kind).true_zeros; }

std::string supported_activations() {
  std::string names;
  for (const Entry& entry : kTable) {
    if (!names.empty()) names += ", ";
    names += entry.name;
    if (entry.has_param) names += ":<cut>";
  }
  return names;
}

std::string activation_text(const Activation& activation) {
  const Entry& entry = entry_of(activation.kind);
  return entry.has_param ? base::text(entry.name, ":", activation.param) : std::string(entry.name);
}

Activation parse_activation(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const Entry& entry : kTable) {
    if (name != entry.name) continue;
    if (entry.has_param != (colon != std::string_view::npos)) {
      throw InvalidArgument(base::text("activation '", base::printable(text), "': ", entry.name,
                                       entry.has_param ? " needs a cut, as in fatrelu:0.01" : " takes no parameter"));
    }
    Activation activation{entry.kind, 0.0F};
    if (!entry.has_param) return activation;
    const std::string_view number = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), activation.param);
    if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(activation.param) ||
        activation.param < 0.0F) {
      throw InvalidArgument(
          base::text("activation '", base::printable(text), "': the cut must be a finite number >= 0"));
    }
    return activation;
  }
  throw UnsupportedError(
      base::text("activation '", base::printable(text), "' is unknown; supported: ", supported_activations()));
}

}  // namespace powerinfer::ops
