// llama: RMSNorm, grouped-query attention with interleaved RoPE, gated FFN. Llama 1 to 3, ReluLLaMA, ProSparse,
// Mistral.
#include "models/serial_block.h"

namespace powerinfer::models {

const Architecture kLlama = {
    "llama", backend::ActivationKind::kRelu,     backend::ActivationKind::kSilu,
    true,    backend::PredictorInput::kResidual, build_gated_rms_decoder,
};

}  // namespace powerinfer::models
