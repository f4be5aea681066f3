// What a file says about its neurons beside the weights: counts, ids, recorded recall. Not needed to compute, but used
// by tools and shown to people, so it is validated as strictly as the rest.
#pragma once

#include "models/hyperparameters.h"
#include "models/tensor_source.h"

namespace powerinfer::models {

/// Checks the optional `powerinfer.*` keys and the I32 tensors `ffn_activation_count` and `ffn_neuron_id` of every
/// layer (and marks those tensors as known). Throws FormatError, UnsupportedError.
void check_side_data(TensorSource& source, const Hyperparameters& hp);

}  // namespace powerinfer::models
