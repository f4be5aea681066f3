// opt: LayerNorm, learned positions with two extra rows, biases everywhere, ungated FFN, tied output.
#include <algorithm>

#include "base/text.h"
#include "models/serial_block.h"
#include "powerinfer/error.h"

namespace powerinfer::models {

namespace {

constexpr std::size_t kPositionOffset = 2;  // position p reads row p + 2
constexpr float kEpsilon = 1e-5F;           // the published files carry no epsilon

void build(TensorSource& source, const Architecture& architecture, LoadedModel& model) {
  const SerialBlock block{backend::NormKind::kLayer,
                          read_epsilon(source.file(), "opt.attention.layer_norm_epsilon", kEpsilon), false};
  const WeightView embedding = load_embedding(source, model);
  const WeightView positions = source.matrix_of_any_rows("position_embd.weight", model.hp.d_model);
  if (positions.n_rows <= kPositionOffset) {
    throw FormatError(base::text(source.file().path().string(), ": tensor 'position_embd.weight': expected more than ",
                                 kPositionOffset, " rows, got ", positions.n_rows));
  }
  model.max_positions = positions.n_rows - kPositionOffset;
  model.hp.n_ctx_train = std::min(model.hp.n_ctx_train, model.max_positions);
  model.plan.prologue.ops = {backend::EmbedOp{embedding, positions, kPositionOffset}};
  for (std::size_t layer = 0; layer < model.hp.n_layers; ++layer) {
    build_serial_layer(source, architecture, model, layer, block);
  }
  build_epilogue(source, model, embedding, block.norm, block.epsilon);
}

}  // namespace

const Architecture kOpt = {
    "opt", backend::ActivationKind::kRelu,     backend::ActivationKind::kRelu,
    false, backend::PredictorInput::kResidual, build,
};

}  // namespace powerinfer::models
