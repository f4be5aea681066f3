// falcon: parallel block (attention and FFN both read the layer input), fused qkv, NeoX RoPE, LayerNorm, ungated FFN.
// 7B style has one norm; 40B style gives attention its own (attn_norm_2).
#include "models/parts.h"

namespace powerinfer::models {

namespace {

using backend::Slot;

/// One layer: residual += attn_output . attention(norm_2(residual)) + FFN(norm(residual))
void build_layer(TensorSource& source, const Architecture& architecture, LoadedModel& model, std::size_t layer,
                 float epsilon) {
  const std::size_t qkv_width = model.plan.attention.q_width() + 2 * model.plan.attention.kv_width();
  const bool own_norm = source.has(layer_name(layer, "attn_norm_2.weight"));
  const Slot attention_in = own_norm ? Slot::kNormed2 : Slot::kNormed;
  const auto norm = [&](const char* name, Slot out) {
    return load_norm(source, layer_name(layer, name), model.hp.d_model, backend::NormKind::kLayer, epsilon,
                     Slot::kResidual, out);
  };
  std::vector<backend::Op>& ops = model.plan.layers.emplace_back().ops;
  ops.emplace_back(backend::TapOp{TapPoint::kLayerInput, Slot::kResidual});
  ops.emplace_back(norm("attn_norm", Slot::kNormed));
  if (own_norm) ops.emplace_back(norm("attn_norm_2", Slot::kNormed2));
  ops.emplace_back(backend::TapOp{TapPoint::kAttnInput, attention_in});
  ops.emplace_back(backend::LinearOp{
      attention_in, Slot::kQkv, {load_linear(source, layer_name(layer, "attn_qkv"), qkv_width, model.hp.d_model, 0)}});
  ops.emplace_back(backend::RopeOp{backend::RopeStyle::kNeox});
  ops.emplace_back(backend::AttentionOp{});
  ops.emplace_back(backend::TapOp{TapPoint::kAttnOutput, Slot::kAttention});
  // The residual stays the layer input until the FFN has run: its predictor reads it.
  ops.emplace_back(load_attention_output(source, model, layer, Slot::kNormed2));
  ops.emplace_back(backend::TapOp{TapPoint::kResidual, Slot::kResidual});
  ops.emplace_back(backend::TapOp{TapPoint::kFfnInput, Slot::kNormed});
  backend::FfnOp ffn = load_ffn(source, architecture, model, layer);
  if (needs_layer_input(ffn)) ffn.z = Slot::kResidual;
  ops.emplace_back(std::move(ffn));
  ops.emplace_back(backend::TapOp{TapPoint::kFfnOutput, Slot::kProjected});
  ops.emplace_back(backend::AddOp{Slot::kNormed2, Slot::kResidual});
  ops.emplace_back(backend::AddOp{Slot::kProjected, Slot::kResidual});
}

void build(TensorSource& source, const Architecture& architecture, LoadedModel& model) {
  const float epsilon = read_epsilon(source.file(), "falcon.attention.layer_norm_epsilon", 0.0F);
  const WeightView embedding = load_embedding(source, model);
  model.plan.prologue.ops = {backend::EmbedOp{embedding, {}, 0}};
  for (std::size_t layer = 0; layer < model.hp.n_layers; ++layer) {
    build_layer(source, architecture, model, layer, epsilon);
  }
  load_rope(source, model);
  build_epilogue(source, model, embedding, backend::NormKind::kLayer, epsilon);
}

}  // namespace

const Architecture kFalcon = {
    "falcon", backend::ActivationKind::kRelu,       backend::ActivationKind::kGelu,
    false,    backend::PredictorInput::kLayerInput, build,
};

}  // namespace powerinfer::models
