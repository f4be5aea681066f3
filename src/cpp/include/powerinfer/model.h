// A model: immutable weights, hyperparameters and tokenizer of one GGUF file, shared by any number of contexts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "powerinfer/gguf.h"
#include "powerinfer/tokenizer.h"

namespace powerinfer {

/// What decides that an FFN neuron is skipped.
enum class Sparsity {
  kAuto,       ///< predictor if the file has one, else exact for the ReLU family, else dense
  kDense,      ///< nothing is skipped
  kExact,      ///< the true gate (or pre-activation) decides; no loss for the ReLU family
  kPredictor,  ///< the file's low-rank predictor decides
  kThreshold,  ///< reserved; UnsupportedError
};
const char* sparsity_name(Sparsity mode) noexcept;
/// Throws InvalidArgument with the list of names.
Sparsity parse_sparsity(std::string_view name);

enum class WeightsMode { kAuto, kMmap, kRead };

struct ModelOptions {
  Sparsity sparsity = Sparsity::kAuto;
  std::vector<float> threshold = {};  ///< predictor cut: empty = the file's, one value, or one per layer
  std::string activation = {};        ///< "" = the file's; e.g. "relu", "fatrelu:0.01"
  int n_threads = 0;                  ///< default of contexts; 0 = physical cores this process may use
  std::string device = "auto";        ///< "auto" or "cpu"
  WeightsMode weights = WeightsMode::kAuto;
};

/// One execution mode and what it means for this model.
struct ModeInfo {
  Sparsity mode;
  bool available;
  std::string note;  ///< what it skips, or why it is not available
};

struct LayerInfo {
  std::string predictor_kind = "none";  ///< "none", "mlp", "svd", "sign"
  std::int32_t predictor_rank = 0;      ///< 0: none, or of a kind without one
  float predictor_threshold = 0.0F;
};

class ModelImpl;

/// Loaded and validated model. All methods are const and may be called from any thread.
class Model {
 public:
  /// Throws FormatError, UnsupportedError, InvalidArgument, OutOfMemoryError.
  static std::shared_ptr<const Model> load(const std::filesystem::path& path, const ModelOptions& options = {});
  ~Model();

  const GgufFile& file() const;
  bool has_tokenizer() const;
  const Tokenizer& tokenizer() const;  ///< throws UnsupportedError when the file has no vocabulary

  const std::string& architecture() const;  ///< "llama", "bamboo", "falcon", "opt"
  std::string name() const;                 ///< general.name or the file name
  std::int32_t n_vocab() const;
  std::int32_t n_ctx_train() const;
  std::int32_t d_model() const;
  std::int32_t d_ff() const;
  std::int32_t n_layers() const;
  std::int32_t n_heads() const;
  std::int32_t n_kv_heads() const;
  std::int32_t head_dim() const;
  std::uint64_t n_params() const;      ///< elements of all tensors, predictors left out
  std::uint64_t weight_bytes() const;  ///< bytes of all tensors

  std::string activation() const;         ///< e.g. "relu", "fatrelu:0.01"
  std::string activation_source() const;  ///< why: "file key", "override", "assumed: ..."
  bool has_transposed_down() const;       ///< every layer has ffn_down_t: an inactive neuron's output row is skipped
  Sparsity default_sparsity() const;      ///< resolved: never kAuto
  std::vector<ModeInfo> modes() const;
  std::vector<LayerInfo> layers() const;
  /// What a mode can lose and how to avoid it, one sentence; with the recall and density recorded in the file.
  std::string mode_summary(Sparsity mode) const;
  const ModelOptions& options() const;

  const ModelImpl& impl() const;  ///< the engine's own view

 private:
  explicit Model(std::unique_ptr<ModelImpl> impl);
  std::unique_ptr<ModelImpl> impl_;
};

}  // namespace powerinfer
