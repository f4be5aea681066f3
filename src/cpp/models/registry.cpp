// The list of architectures, and loading whatever one a file names.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/architecture.h"
#include "models/side_data.h"
#include "ops/activation.h"
#include "powerinfer/error.h"

namespace powerinfer::models {

namespace {

constexpr const Architecture* kArchitectures[] = {&kLlama, &kBamboo, &kFalcon, &kOpt};
constexpr std::uint32_t kKnownVersion = 1;  // powerinfer.version

const Architecture& find_architecture(const GgufFile& file) {
  const std::string where = file.path().string();
  const std::string* name = file.find_string("general.architecture");
  if (name == nullptr) throw FormatError(base::text(where, ": required key 'general.architecture' is missing"));
  for (const Architecture* architecture : kArchitectures) {
    if (*name == architecture->name) return *architecture;
  }
  if (*name == "generic.gpu_index") {
    throw UnsupportedError(
        base::text(where, ": this is a cached split file, not a model; load the model it lies beside"));
  }
  throw UnsupportedError(base::text(where, ": architecture '", base::printable(*name),
                                    "' is not supported; supported: ", supported_architectures()));
}

void check_version(const GgufFile& file) {
  const auto version = file.find_u32("powerinfer.version");
  if (version && *version > kKnownVersion) {
    throw UnsupportedError(base::text(file.path().string(), ": powerinfer.version is ", *version,
                                      ", this build reads up to ", kKnownVersion, "; update the package"));
  }
}

bool has_sparse_tensors(const GgufFile& file) {
  return std::ranges::any_of(file.tensors(), [](const TensorInfo& info) {
    return info.name.ends_with(".ffn_down_t.weight") || info.name.ends_with(".ffn_down_t_cold.weight") ||
           info.name.ends_with(".fc1.weight") || info.name.ends_with(".ffn_gate_sign.weight");
  });
}

/// The magic says which engines can read a file, and what an unlabelled one is computed with: it must be true.
void check_magic(const GgufFile& file) {
  const bool sparse = has_sparse_tensors(file);
  if (sparse == file.has_powerinfer_magic()) return;
  throw FormatError(base::text(file.path().string(),
                               sparse ? ": magic GGUF but ffn_down_t or predictor tensors, which only PWRI files hold"
                                      : ": magic PWRI but neither ffn_down_t nor predictor tensors",
                               "; re-run the conversion"));
}

void resolve_activation(const GgufFile& file, const Architecture& architecture, const LoadOptions& options,
                        LoadedModel& model) {
  const std::string where = file.path().string();
  const std::string key = model.hp.architecture + ".hidden_activation";
  const std::string* named = file.find_string(key);
  if (options.activation) {
    model.activation = *options.activation;
    model.activation_source = "override";
  } else if (named != nullptr) {
    std::string text = *named;
    if (text == "fatrelu") {
      const auto cut = file.find_f32(key + "_param");
      if (!cut || !std::isfinite(*cut) || *cut < 0.0F) {
        throw FormatError(base::text(where, ": '", key, "' is fatrelu, which needs '", key, "_param': a number >= 0"));
      }
      model.activation = {backend::ActivationKind::kFatrelu, *cut};
    } else {
      try {
        model.activation = ops::parse_activation(text);
      } catch (const Error& error) {
        throw UnsupportedError(base::text(where, ": key '", key, "': ", error.what()));
      }
    }
    model.activation_source = base::text("key '", key, "'");
  } else {
    const bool sparse = file.has_powerinfer_magic();
    model.activation.kind = sparse ? architecture.assumed_sparse : architecture.assumed_plain;
    model.activation_source = sparse ? "assumed: a PWRI file without an activation key is ReLU-activated"
                                     : base::text("assumed: no activation key; what '", architecture.name,
                                                  "' files without one are computed with");
  }
  if (!architecture.gated && model.activation.kind == backend::ActivationKind::kDrelu) {
    throw UnsupportedError(
        base::text(where, ": activation drelu needs a gated FFN, and architecture '", architecture.name, "' has none"));
  }
}

}  // namespace

std::string supported_architectures() {
  std::string names;
  for (const Architecture* architecture : kArchitectures) {
    names += (names.empty() ? "" : ", ") + std::string(architecture->name);
  }
  return names;
}

LoadedModel load_model(TensorSource& source, const LoadOptions& options) {
  const GgufFile& file = source.file();
  const Architecture& architecture = find_architecture(file);
  check_version(file);
  check_magic(file);
  LoadedModel model;
  model.hp = read_hyperparameters(file, architecture.name);
  resolve_activation(file, architecture, options, model);
  model.plan.d_model = model.hp.d_model;
  model.plan.attention.n_heads = model.hp.n_heads;
  model.plan.attention.n_kv_heads = model.hp.n_kv_heads;
  model.plan.attention.head_dim = model.hp.head_dim;
  architecture.build(source, architecture, model);
  check_side_data(source, model.hp);
  source.require_all_used(architecture.name);
  return model;
}

}  // namespace powerinfer::models
