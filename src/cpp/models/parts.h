// Pieces that architectures share: embedding and output, attention projections, the FFN with its predictor.
#pragma once

#include <string>

#include "models/architecture.h"

namespace powerinfer::models {

/// "blk.3.attn_q.weight"
std::string layer_name(std::size_t layer, const std::string& suffix);

/// Token embedding (and its size as n_vocab). Throws FormatError when the vocabulary has another size.
WeightView load_embedding(TensorSource& source, LoadedModel& model);

/// Epilogue: gather outputs, final norm (`output_norm`), logits (`output.weight`, or the embedding when absent).
void build_epilogue(TensorSource& source, LoadedModel& model, const WeightView& embedding, backend::NormKind norm,
                    float epsilon);

/// A norm with its weight (and, for layer norms, bias) under `name`.
backend::NormOp load_norm(TensorSource& source, const std::string& name, std::size_t width, backend::NormKind kind,
                          float epsilon, backend::Slot in, backend::Slot out);

/// `name`.weight [n_rows, n_cols] with its optional bias.
backend::LinearOp::Part load_linear(TensorSource& source, const std::string& name, std::size_t n_rows,
                                    std::size_t n_cols, std::size_t column);

/// Separate q, k, v projections from `in` into kQkv.
backend::LinearOp load_qkv(TensorSource& source, const LoadedModel& model, std::size_t layer, backend::Slot in);

/// attn_output from kAttention into `out`.
backend::LinearOp load_attention_output(TensorSource& source, const LoadedModel& model, std::size_t layer,
                                        backend::Slot out);

/// RoPE frequencies from base, linear scale and the optional `rope_freqs.weight` factors, into plan.attention.
void load_rope(TensorSource& source, LoadedModel& model);

/// The FFN of a layer with its predictor: reads kNormed, writes kProjected.
backend::FfnOp load_ffn(TensorSource& source, const Architecture& architecture, LoadedModel& model, std::size_t layer);

/// True when the layer's predictor needs Slot::kLayerInput to be filled at the start of the layer.
bool needs_layer_input(const backend::FfnOp& op);

}  // namespace powerinfer::models
