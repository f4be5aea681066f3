#include "models/serial_block.h"

namespace powerinfer::models {

using backend::Slot;

void build_serial_layer(TensorSource& source, const Architecture& architecture, LoadedModel& model, std::size_t layer,
                        const SerialBlock& block) {
  backend::FfnOp ffn = load_ffn(source, architecture, model, layer);
  const auto norm = [&](const char* name) {
    return load_norm(source, layer_name(layer, name), model.hp.d_model, block.norm, block.epsilon, Slot::kResidual,
                     Slot::kNormed);
  };
  std::vector<backend::Op>& ops = model.plan.layers.emplace_back().ops;
  ops.emplace_back(backend::TapOp{TapPoint::kLayerInput, Slot::kResidual});
  if (needs_layer_input(ffn)) ops.emplace_back(backend::CopyOp{Slot::kResidual, Slot::kLayerInput});
  ops.emplace_back(norm("attn_norm"));
  ops.emplace_back(backend::TapOp{TapPoint::kAttnInput, Slot::kNormed});
  ops.emplace_back(load_qkv(source, model, layer, Slot::kNormed));
  if (block.rope) ops.emplace_back(backend::RopeOp{backend::RopeStyle::kInterleaved});
  ops.emplace_back(backend::AttentionOp{});
  ops.emplace_back(backend::TapOp{TapPoint::kAttnOutput, Slot::kAttention});
  ops.emplace_back(load_attention_output(source, model, layer, Slot::kProjected));
  ops.emplace_back(backend::AddOp{Slot::kProjected, Slot::kResidual});
  ops.emplace_back(backend::TapOp{TapPoint::kResidual, Slot::kResidual});
  ops.emplace_back(norm("ffn_norm"));
  ops.emplace_back(backend::TapOp{TapPoint::kFfnInput, Slot::kNormed});
  ops.emplace_back(std::move(ffn));
  ops.emplace_back(backend::TapOp{TapPoint::kFfnOutput, Slot::kProjected});
  ops.emplace_back(backend::AddOp{Slot::kProjected, Slot::kResidual});
}

void build_gated_rms_decoder(TensorSource& source, const Architecture& architecture, LoadedModel& model) {
  const std::string key = model.hp.architecture + ".attention.layer_norm_rms_epsilon";
  const SerialBlock block{backend::NormKind::kRms, read_epsilon(source.file(), key, 0.0F), true};
  const WeightView embedding = load_embedding(source, model);
  model.plan.prologue.ops = {backend::EmbedOp{embedding, {}, 0}};
  for (std::size_t layer = 0; layer < model.hp.n_layers; ++layer) {
    // Old converters stored each layer's rotary table; it follows from the base.
    source.ignore(layer_name(layer, "attn_rot_embd"));
    source.ignore(layer_name(layer, "attn_rot_embd.weight"));
    build_serial_layer(source, architecture, model, layer, block);
  }
  load_rope(source, model);
  build_epilogue(source, model, embedding, block.norm, block.epsilon);
}

}  // namespace powerinfer::models
