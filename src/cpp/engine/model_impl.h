// The engine's view of a loaded model.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "models/architecture.h"
#include "powerinfer/model.h"

namespace powerinfer {

class ModelImpl {
 public:
  ModelImpl(GgufFile opened, const ModelOptions& given) : file(std::move(opened)), options(given) {}

  GgufFile file;
  ModelOptions options;
  std::optional<Tokenizer> tokenizer;
  models::LoadedModel loaded;
  std::vector<std::unique_ptr<float[]>> vectors;  // norms and biases the plan points to
  std::unique_ptr<backend::Backend> backend;
  Sparsity default_sparsity = Sparsity::kDense;

  /// The layer's FFN.
  const backend::FfnOp& ffn(std::size_t layer) const;
  bool has_predictors() const;
  bool all_down_transposed() const;
  bool has_true_zeros() const;
  /// Resolves kAuto. Throws UnsupportedError when the model cannot do the mode, saying why.
  Sparsity resolve(Sparsity mode) const;
  /// Per-layer rules of a resolved mode; `threshold`: empty, one value, or one per layer (InvalidArgument otherwise).
  std::vector<backend::LayerMode> layer_modes(Sparsity mode, const std::vector<float>& threshold) const;
};

}  // namespace powerinfer
