// The interface of architectures and their registry. An architecture turns a file into a plan; it is asked once, on
// load. A new one is one file with a function of this type and one line in registry.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backend/plan.h"
#include "models/hyperparameters.h"
#include "models/tensor_source.h"

namespace powerinfer::models {

struct LoadedModel {
  Hyperparameters hp;
  backend::ModelPlan plan;
  backend::Activation activation;
  std::string activation_source;
  std::size_t max_positions = 0;  ///< hard limit of a position table; 0: none
};

/// What the caller wants otherwise than the file says.
struct LoadOptions {
  std::optional<backend::Activation> activation;
};

struct Architecture {
  const char* name;
  backend::ActivationKind assumed_sparse;   ///< of a PWRI file without the activation key
  backend::ActivationKind assumed_plain;    ///< of a GGUF file without it
  bool gated;                               ///< h = act(gate) * up, else h = act(up)
  backend::PredictorInput predictor_input;  ///< of files that do not say
  /// Fills plan.prologue, layers and epilogue; hp and activation are set.
  void (*build)(TensorSource& source, const Architecture& self, LoadedModel& model);
};

extern const Architecture kLlama;
extern const Architecture kBamboo;
extern const Architecture kFalcon;
extern const Architecture kOpt;

/// "llama, bamboo, ..." for messages.
std::string supported_architectures();

/// Reads keys and tensors of `source`'s file, whatever its architecture. Throws FormatError, UnsupportedError.
LoadedModel load_model(TensorSource& source, const LoadOptions& options);

}  // namespace powerinfer::models
