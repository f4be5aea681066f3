// bamboo: Mistral-shaped with dReLU, h = relu(gate) * relu(up).
#include "models/serial_block.h"

namespace powerinfer::models {

const Architecture kBamboo = {
    "bamboo", backend::ActivationKind::kDrelu,    backend::ActivationKind::kDrelu,
    true,     backend::PredictorInput::kResidual, build_gated_rms_decoder,
};

}  // namespace powerinfer::models
