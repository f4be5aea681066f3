// What a model computes, as data: a list of operations per layer over named buffers. Architectures write it once at
// load, backends execute it. Nothing here knows a kernel or a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "powerinfer/context.h"
#include "tensor/weight.h"

namespace powerinfer::backend {

/// Buffers of a pass, one row per token; widths are in BufferWidths.
enum class Slot : std::uint8_t {
  kResidual,    // [rows, d_model]
  kNormed,      // [rows, d_model]
  kNormed2,     // [rows, d_model] second norm of parallel blocks
  kQkv,         // [rows, q_width + 2 * kv_width] all query heads, then key heads, then value heads
  kAttention,   // [rows, q_width]
  kProjected,   // [rows, d_model] what attention or FFN adds to the residual
  kLayerInput,  // [rows, d_model] copy of the residual entering the layer, where a predictor needs it
  kOutput,      // [n_outputs, d_model] rows that want logits
  kCount,
};

enum class ActivationKind : std::uint8_t { kRelu, kRelu2, kDrelu, kFatrelu, kSilu, kGelu, kGeluTanh };

struct Activation {
  ActivationKind kind = ActivationKind::kSilu;
  float param = 0.0F;  ///< fatrelu's cut
};

enum class PredictorInput : std::uint8_t { kResidual, kLayerInput, kFfnInput };

/// How a predictor scores neurons.
enum class PredictorKind : std::uint8_t {
  kNone,
  kMlp,   // s = fc2 . relu(fc1 . z) + bias
  kSvd,   // s = fc2 . (fc1 . z) + bias
  kSign,  // s = d_model - 2 * popcount(sign bits of the neuron XOR those of z) + bias
};

/// A neuron is computed iff its score >= threshold.
struct Predictor {
  PredictorKind kind = PredictorKind::kNone;
  WeightView fc1;                   // [rank, d_model]; kMlp, kSvd
  WeightView fc2;                   // [d_ff, rank]; kMlp, kSvd
  WeightView signs;                 // [d_ff, ceil(d_model / 32)] words; kSign
  const float* fc2_bias = nullptr;  // [d_ff] or null
  float threshold = 0.0F;           // the file's; contexts may override
  PredictorInput input = PredictorInput::kResidual;

  explicit operator bool() const { return kind != PredictorKind::kNone; }
};

/// Weights of neurons, one row each: those of the hot neurons, then those of the cold ones, which may be of a smaller
/// type. Either part may be absent.
struct NeuronRows {
  WeightView hot;
  WeightView cold;

  explicit operator bool() const { return hot || cold; }
  const WeightView& part(bool is_cold) const { return is_cold ? cold : hot; }
};

/// A feed-forward network whose neurons can be skipped one by one.
struct FfnUnit {
  NeuronRows gate;  // [d_ff, d_model]; absent: h = act(up)
  NeuronRows up;    // [d_ff, d_model]
  NeuronRows
      down;  // transposed: [d_ff, d_model] row n = output weights of neuron n; plain: [d_model, d_ff], all in hot
  bool transposed_down = false;
  const float* gate_bias = nullptr;  // [d_ff] or null, likewise below
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // [d_model]
  Activation activation;
  Predictor predictor;
  std::size_t d_ff = 0;

  std::size_t n_hot() const { return up.hot.n_rows; }
};

enum class NormKind : std::uint8_t { kRms, kLayer };
enum class RopeStyle : std::uint8_t { kInterleaved, kNeox };

/// residual = token embedding (+ position embedding row `position + position_offset`)
struct EmbedOp {
  WeightView tokens;
  WeightView positions;  // absent: none
  std::size_t position_offset = 0;
};
struct NormOp {
  Slot in;
  Slot out;
  NormKind kind;
  const float* weight;  // [d_model]
  const float* bias;    // [d_model] or null
  float epsilon;
};
/// out[:, part.column ...] = part.weight . in + part.bias, for all parts over one input.
struct LinearOp {
  struct Part {
    WeightView weight;
    const float* bias;
    std::size_t column;
  };
  Slot in;
  Slot out;
  std::vector<Part> parts;
};
/// Rotates query and key heads within kQkv, in place.
struct RopeOp {
  RopeStyle style;
};
/// Appends this pass's keys and values (from kQkv) to the cache, then attends: kQkv -> kAttention.
struct AttentionOp {};
/// y += x
struct AddOp {
  Slot x;
  Slot y;
};
/// out = in
struct CopyOp {
  Slot in;
  Slot out;
};
/// out = FFN(x), mask from the predictor's input z where a predictor decides.
struct FfnOp {
  FfnUnit unit;
  int unit_index;
  Slot x;
  Slot z;
  Slot out;
};
/// Shows a buffer to the sink attached at this point, if any.
struct TapOp {
  TapPoint point;
  Slot slot;
};
/// Collects the residual rows that want output into kOutput; the ops after it run on those rows.
struct GatherOutputsOp {};
/// logits = weight . kOutput
struct LogitsOp {
  WeightView weight;
  const float* bias;
};

using Op = std::variant<EmbedOp, NormOp, LinearOp, RopeOp, AttentionOp, AddOp, CopyOp, FfnOp, TapOp, GatherOutputsOp,
                        LogitsOp>;

struct LayerPlan {
  std::vector<Op> ops;

  /// The layer's FFN. Only layers have one, not prologue and epilogue.
  const FfnOp& ffn() const {
    const auto is_ffn = [](const Op& op) { return std::holds_alternative<FfnOp>(op); };
    return std::get<FfnOp>(*std::find_if(ops.begin(), ops.end(), is_ffn));
  }
};

struct AttentionShape {
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t rope_dim = 0;           // leading dims of a head that are rotated; 0: no RoPE
  std::vector<double> rope_inv_freq;  // [rope_dim / 2], scaling included

  std::size_t q_width() const { return n_heads * head_dim; }
  std::size_t kv_width() const { return n_kv_heads * head_dim; }
};

/// A whole model: prologue (embedding), layers, epilogue (final norm, logits).
struct ModelPlan {
  LayerPlan prologue;
  std::vector<LayerPlan> layers;
  LayerPlan epilogue;
  AttentionShape attention;
  std::size_t d_model = 0;
  std::size_t d_ff_max = 0;
  std::size_t rank_max = 0;    // largest predictor rank
  std::size_t sign_words = 0;  // of an input's sign bits; 0: no layer has a sign predictor
  std::size_t n_vocab = 0;
};

}  // namespace powerinfer::backend
