// Sizes and choices of a model, read from `{arch}.*` keys and validated before any tensor is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "powerinfer/gguf.h"

namespace powerinfer::models {

struct Hyperparameters {
  std::string architecture;
  std::size_t n_ctx_train = 0;
  std::size_t d_model = 0;
  std::size_t d_ff = 0;
  std::size_t n_layers = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t rope_dim = 0;
  double rope_base = 10000.0;
  double rope_scale = 1.0;  ///< linear scaling: positions are divided by this
};

/// Reads and validates the keys all architectures share. Throws FormatError, UnsupportedError.
Hyperparameters read_hyperparameters(const GgufFile& file, const std::string& architecture);

/// `{arch}.attention.layer_norm[_rms]_epsilon`; `fallback` <= 0: the key is required.
float read_epsilon(const GgufFile& file, const std::string& key, float fallback);

}  // namespace powerinfer::models
