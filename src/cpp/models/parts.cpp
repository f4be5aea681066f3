#include "models/parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer::models {

namespace {

using backend::PredictorInput;
using backend::PredictorKind;
using backend::Slot;

PredictorInput read_predictor_input(const GgufFile& file, PredictorInput fallback) {
  const std::string* name = file.find_string("powerinfer.predictor.input");
  if (name == nullptr) return fallback;
  if (*name == "residual") return PredictorInput::kResidual;
  if (*name == "layer_input") return PredictorInput::kLayerInput;
  if (*name == "ffn_input") return PredictorInput::kFfnInput;
  throw UnsupportedError(base::text(file.path().string(), ": powerinfer.predictor.input '", base::printable(*name),
                                    "' is unknown; supported: residual, layer_input, ffn_input"));
}

const char* tensor_of(PredictorKind kind) {
  return kind == PredictorKind::kSign ? "ffn_gate_sign.weight" : "fc1.weight";
}

bool any_layer_has(const TensorSource& source, std::size_t n_layers, const char* suffix) {
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    if (source.has(layer_name(layer, suffix))) return true;
  }
  return false;
}

PredictorKind parse_predictor_kind(const GgufFile& file, const std::string& name, std::size_t layer) {
  if (name == "mlp") return PredictorKind::kMlp;
  if (name == "svd") return PredictorKind::kSvd;
  if (name == "sign") return PredictorKind::kSign;
  if (name == "none") return PredictorKind::kNone;
  throw UnsupportedError(base::text(file.path().string(), ": predictor kind '", base::printable(name), "' (layer ",
                                    layer, ") is unknown; supported: mlp, svd, sign, none"));
}

/// The layer's predictor kind. One kind for the whole file allows layers without a predictor's tensors.
PredictorKind read_predictor_kind(const TensorSource& source, std::size_t layer, std::size_t n_layers) {
  constexpr const char* kKey = "powerinfer.predictor.kind";
  const GgufFile& file = source.file();
  const GgufValue* value = file.find(kKey);
  if (value != nullptr && std::holds_alternative<GgufArray>(*value)) {
    const std::vector<std::string>* kinds = file.find_strings(kKey);
    if (kinds->size() != n_layers) {
      throw FormatError(
          base::text(file.path().string(), ": key '", kKey, "': expected ", n_layers, " entries, got ", kinds->size()));
    }
    return parse_predictor_kind(file, (*kinds)[layer], layer);
  }
  const PredictorKind kind =
      value == nullptr ? PredictorKind::kMlp : parse_predictor_kind(file, *file.find_string(kKey), layer);
  if (kind == PredictorKind::kNone || source.has(layer_name(layer, tensor_of(kind)))) return kind;
  if (value != nullptr && !any_layer_has(source, n_layers, tensor_of(kind))) {
    throw FormatError(base::text(file.path().string(), ": key '", kKey, "' is '", *file.find_string(kKey),
                                 "', but no layer has a tensor '", tensor_of(kind), "'; re-run the conversion"));
  }
  return PredictorKind::kNone;
}

float read_threshold(const GgufFile& file, std::size_t layer, std::size_t n_layers) {
  constexpr const char* kKey = "powerinfer.predictor.threshold";
  float threshold = file.find_f32("powerinfer.sparse_threshold").value_or(0.0F);
  if (const std::vector<float>* per_layer = file.find_floats(kKey)) {
    if (per_layer->size() != n_layers) {
      throw FormatError(base::text(file.path().string(), ": key '", kKey, "': expected ", n_layers, " entries, got ",
                                   per_layer->size()));
    }
    threshold = (*per_layer)[layer];
  }
  if (std::isnan(threshold)) {
    throw FormatError(base::text(file.path().string(), ": the predictor threshold of layer ", layer, " is NaN"));
  }
  return threshold;
}

/// Sign bits of every neuron; those past the last column must be 0, as they are in the input's.
WeightView load_signs(TensorSource& source, const LoadedModel& model, std::size_t layer) {
  const std::size_t n_words = (model.hp.d_model + 31) / 32;
  const std::string name = layer_name(layer, tensor_of(PredictorKind::kSign));
  const WeightView signs = source.words(name, model.hp.d_ff, n_words);
  const std::size_t n_used = model.hp.d_model % 32;
  for (std::size_t row = 0; n_used != 0 && row < signs.n_rows; ++row) {
    std::uint32_t last = 0;
    std::memcpy(&last, signs.row(row) + (n_words - 1) * sizeof(last), sizeof(last));
    if (last >> n_used != 0) {
      throw FormatError(base::text(source.file().path().string(), ": tensor '", name, "', row ", row,
                                   ": expected 0 in the bits past the ", model.hp.d_model, " columns"));
    }
  }
  return signs;
}

backend::Predictor load_predictor(TensorSource& source, const Architecture& architecture, const LoadedModel& model,
                                  std::size_t layer) {
  const GgufFile& file = source.file();
  backend::Predictor predictor;
  predictor.kind = read_predictor_kind(source, layer, model.hp.n_layers);
  if (!predictor) return predictor;
  const bool is_sign = predictor.kind == PredictorKind::kSign;
  if (is_sign) {
    predictor.signs = load_signs(source, model, layer);
  } else {
    predictor.fc1 = source.matrix_of_any_rows(layer_name(layer, "fc1.weight"), model.hp.d_model);
    predictor.fc2 = source.matrix(layer_name(layer, "fc2.weight"), model.hp.d_ff, predictor.fc1.n_rows);
  }
  predictor.fc2_bias = source.optional_vector(layer_name(layer, "fc2.bias"), model.hp.d_ff);
  predictor.threshold = read_threshold(file, layer, model.hp.n_layers);
  const bool is_mlp = predictor.kind == PredictorKind::kMlp;
  predictor.input = read_predictor_input(file, is_mlp ? architecture.predictor_input : PredictorInput::kFfnInput);
  if (is_sign && predictor.input != PredictorInput::kFfnInput) {
    throw FormatError(base::text(file.path().string(), ": the predictor of layer ", layer,
                                 " is of kind 'sign', which reads 'ffn_input', but powerinfer.predictor.input is '",
                                 *file.find_string("powerinfer.predictor.input"), "'"));
  }
  return predictor;
}

/// The layer's number of hot neurons; all of them in files without a cold type.
std::size_t read_n_hot(const GgufFile& file, const Hyperparameters& hp, std::size_t layer) {
  constexpr const char* kKey = "powerinfer.hot_neurons";
  if (file.find(kKey) == nullptr) return hp.d_ff;
  const auto counts = file.find_i32s(kKey);
  if (counts->size() != hp.n_layers) {
    throw FormatError(base::text(file.path().string(), ": key '", kKey, "': expected ", hp.n_layers, " entries, got ",
                                 counts->size()));
  }
  const std::int32_t n_hot = (*counts)[layer];
  if (n_hot < 0 || static_cast<std::size_t>(n_hot) > hp.d_ff) {
    throw FormatError(base::text(file.path().string(), ": key '", kKey, "', layer ", layer, ": expected 0 to ", hp.d_ff,
                                 ", got ", n_hot));
  }
  return static_cast<std::size_t>(n_hot);
}

/// One row of d_model values per neuron, from `name` and `name`_cold; a part without neurons has no tensor.
backend::NeuronRows load_neuron_rows(TensorSource& source, const Hyperparameters& hp, std::size_t n_hot,
                                     const std::string& name) {
  backend::NeuronRows rows;
  if (n_hot > 0) rows.hot = source.matrix(name + ".weight", n_hot, hp.d_model);
  if (n_hot < hp.d_ff) rows.cold = source.matrix(name + "_cold.weight", hp.d_ff - n_hot, hp.d_model);
  return rows;
}

void load_down(TensorSource& source, const LoadedModel& model, std::size_t layer, std::size_t n_hot,
               backend::FfnUnit& unit) {
  const std::string transposed = layer_name(layer, "ffn_down_t");
  const std::string plain = layer_name(layer, "ffn_down");
  unit.transposed_down = n_hot < model.hp.d_ff || source.has(transposed + ".weight");
  if (unit.transposed_down) {
    unit.down = load_neuron_rows(source, model.hp, n_hot, transposed);
  } else {
    unit.down.hot = source.matrix(plain + ".weight", model.hp.d_model, model.hp.d_ff);
  }
  const std::string bias = (source.has(transposed + ".bias") ? transposed : plain) + ".bias";
  unit.down_bias = source.optional_vector(bias, model.hp.d_model);
}

Slot predictor_slot(PredictorInput input) {
  switch (input) {
    case PredictorInput::kResidual:
      return Slot::kResidual;
    case PredictorInput::kLayerInput:
      return Slot::kLayerInput;
    case PredictorInput::kFfnInput:
      return Slot::kNormed;
  }
  return Slot::kResidual;
}

}  // namespace

std::string layer_name(std::size_t layer, const std::string& suffix) {
  return "blk." + std::to_string(layer) + "." + suffix;
}

WeightView load_embedding(TensorSource& source, LoadedModel& model) {
  const WeightView embedding = source.matrix_of_any_rows("token_embd.weight", model.hp.d_model);
  model.plan.n_vocab = embedding.n_rows;
  const std::vector<std::string>* tokens = source.file().find_strings("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->size() != embedding.n_rows) {
    throw FormatError(base::text(source.file().path().string(), ": tensor 'token_embd.weight' has ", embedding.n_rows,
                                 " rows, the vocabulary ", tokens->size(), " tokens"));
  }
  return embedding;
}

void build_epilogue(TensorSource& source, LoadedModel& model, const WeightView& embedding, backend::NormKind norm,
                    float epsilon) {
  WeightView output = embedding;
  if (source.has("output.weight")) output = source.matrix("output.weight", embedding.n_rows, model.hp.d_model);
  const float* bias = source.optional_vector("output.bias", embedding.n_rows);
  model.plan.epilogue.ops = {
      backend::GatherOutputsOp{},
      load_norm(source, "output_norm", model.hp.d_model, norm, epsilon, Slot::kOutput, Slot::kOutput),
      backend::LogitsOp{output, bias}};
}

backend::NormOp load_norm(TensorSource& source, const std::string& name, std::size_t width, backend::NormKind kind,
                          float epsilon, Slot in, Slot out) {
  const float* weight = source.vector(name + ".weight", width);
  const float* bias = kind == backend::NormKind::kLayer ? source.optional_vector(name + ".bias", width) : nullptr;
  return {in, out, kind, weight, bias, epsilon};
}

backend::LinearOp::Part load_linear(TensorSource& source, const std::string& name, std::size_t n_rows,
                                    std::size_t n_cols, std::size_t column) {
  return {source.matrix(name + ".weight", n_rows, n_cols), source.optional_vector(name + ".bias", n_rows), column};
}

backend::LinearOp load_qkv(TensorSource& source, const LoadedModel& model, std::size_t layer, Slot in) {
  const std::size_t d_model = model.hp.d_model;
  const std::size_t q = model.plan.attention.q_width();
  const std::size_t kv = model.plan.attention.kv_width();
  return {in,
          Slot::kQkv,
          {load_linear(source, layer_name(layer, "attn_q"), q, d_model, 0),
           load_linear(source, layer_name(layer, "attn_k"), kv, d_model, q),
           load_linear(source, layer_name(layer, "attn_v"), kv, d_model, q + kv)}};
}

backend::LinearOp load_attention_output(TensorSource& source, const LoadedModel& model, std::size_t layer, Slot out) {
  return {Slot::kAttention,
          out,
          {load_linear(source, layer_name(layer, "attn_output"), model.hp.d_model, model.plan.attention.q_width(), 0)}};
}

void load_rope(TensorSource& source, LoadedModel& model) {
  const Hyperparameters& hp = model.hp;
  if (hp.rope_dim > hp.head_dim || hp.rope_dim % 2 != 0) {
    throw FormatError(
        base::text(source.file().path().string(), ": '", hp.architecture,
                   ".rope.dimension_count' (without it: the size of a head): expected an even number up to ",
                   hp.head_dim, ", got ", hp.rope_dim));
  }
  const std::size_t n_pairs = hp.rope_dim / 2;
  const float* factors = source.optional_vector("rope_freqs.weight", n_pairs);
  model.plan.attention.rope_dim = hp.rope_dim;
  for (std::size_t pair = 0; pair < n_pairs; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(hp.rope_dim);
    const double factor = factors == nullptr ? 1.0 : factors[pair];
    if (!std::isfinite(factor) || factor <= 0.0) {
      throw FormatError(base::text(source.file().path().string(),
                                   ": tensor 'rope_freqs.weight': expected positive "
                                   "factors, got ",
                                   factor, " at ", pair));
    }
    model.plan.attention.rope_inv_freq.push_back(std::pow(hp.rope_base, exponent) / factor / hp.rope_scale);
  }
}

backend::FfnOp load_ffn(TensorSource& source, const Architecture& architecture, LoadedModel& model, std::size_t layer) {
  const std::size_t d_ff = model.hp.d_ff;
  const std::size_t n_hot = read_n_hot(source.file(), model.hp, layer);
  backend::FfnUnit unit;
  unit.d_ff = d_ff;
  unit.activation = model.activation;
  if (architecture.gated) {
    unit.gate = load_neuron_rows(source, model.hp, n_hot, layer_name(layer, "ffn_gate"));
    unit.gate_bias = source.optional_vector(layer_name(layer, "ffn_gate.bias"), d_ff);
  }
  unit.up = load_neuron_rows(source, model.hp, n_hot, layer_name(layer, "ffn_up"));
  unit.up_bias = source.optional_vector(layer_name(layer, "ffn_up.bias"), d_ff);
  load_down(source, model, layer, n_hot, unit);
  unit.predictor = load_predictor(source, architecture, model, layer);
  model.plan.d_ff_max = std::max(model.plan.d_ff_max, d_ff);
  model.plan.rank_max = std::max(model.plan.rank_max, unit.predictor.fc1.n_rows);
  model.plan.sign_words = std::max(model.plan.sign_words, unit.predictor.signs.n_cols);
  const Slot z = predictor_slot(unit.predictor.input);
  return {std::move(unit), 0, Slot::kNormed, z, Slot::kProjected};
}

bool needs_layer_input(const backend::FfnOp& op) {
  return op.unit.predictor && op.unit.predictor.input == PredictorInput::kLayerInput;
}

}  // namespace powerinfer::models
