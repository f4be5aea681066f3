// The serial pre-norm block (attention, add, FFN, add) that llama, bamboo and opt are built from.
#pragma once

#include "models/architecture.h"
#include "models/parts.h"

namespace powerinfer::models {

struct SerialBlock {
  backend::NormKind norm;
  float epsilon;
  bool rope;  ///< interleaved RoPE on q and k
};

/// One layer:
///   residual += attn_output . attention(attn_norm(residual))
///   residual += FFN(ffn_norm(residual))
void build_serial_layer(TensorSource& source, const Architecture& architecture, LoadedModel& model, std::size_t layer,
                        const SerialBlock& block);

/// Whole model of RMSNorm blocks with RoPE and a gated FFN (llama, bamboo).
void build_gated_rms_decoder(TensorSource& source, const Architecture& architecture, LoadedModel& model);

}  // namespace powerinfer::models
