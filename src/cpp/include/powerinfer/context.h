// A context: the state of one or several sequences over a model (KV cache, scratch, threads) and its evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "powerinfer/model.h"

namespace powerinfer {

namespace engine {
struct ContextAccess;
}

enum class KvType { kF16, kF32 };

struct ContextOptions {
  int n_ctx = 0;      ///< positions per sequence; 0 = min(trained length, 4096)
  int n_seqs = 1;     ///< sequences held at once
  int n_batch = 512;  ///< tokens computed per pass
  KvType kv_type = KvType::kF16;
  std::optional<Sparsity> sparsity = {};  ///< default: the model's
  std::vector<float> threshold = {};      ///< default: the model's; one value or one per layer
  int n_threads = 0;                      ///< single-token passes; 0 = the model's default
  int n_threads_batch = 0;                ///< larger passes; 0 = n_threads
  bool audit = false;                     ///< compare predictors with the truth, see Stats::audit
};

struct BatchEntry {
  Token token;
  std::int32_t position;
  std::int32_t sequence = 0;
  bool wants_output = false;
};
using Batch = std::vector<BatchEntry>;

/// Named points of a layer whose values can be observed.
enum class TapPoint {
  kLayerInput,  ///< residual stream entering the layer [rows, d_model]
  kAttnInput,   ///< normalised input of the q, k and v projections [rows, d_model]
  kAttnOutput,  ///< attention's result, input of the output projection [rows, n_heads * head_dim]
  kResidual,    ///< residual after attention [rows, d_model] (parallel blocks: the layer input)
  kFfnInput,    ///< normalised FFN input [rows, d_model]
  kGate,        ///< gate (ungated models: up) pre-activation [rows, d_ff]; only where computed, else 0
  kH,           ///< h after activation and product [rows, d_ff]; 0 for skipped neurons
  kFfnOutput,   ///< what the FFN adds to the residual [rows, d_model]
};

inline constexpr std::size_t kTapPoints = static_cast<std::size_t>(TapPoint::kFfnOutput) + 1;

struct TapEvent {
  TapPoint point;
  int layer;
  int unit;  ///< FFN unit within the layer (0 today)
  std::size_t n_rows;
  std::size_t width;
  const float* data;          ///< [n_rows, width], valid during the call
  const BatchEntry* entries;  ///< [n_rows] the rows' tokens and positions
};

/// Receives tapped values, on the thread that called forward(), while it runs.
class TapSink {
 public:
  virtual ~TapSink() = default;
  virtual void on_tap(const TapEvent& event) = 0;
};

/// Decides which neurons are active, in the predictor's place (audits, comparisons, forced masks).
class MaskSource {
 public:
  virtual ~MaskSource() = default;
  /// Fills `active` [d_ff] with 0 or 1 for this token and returns true, or returns false to leave the decision to
  /// the context's mode. Called on the thread that called forward().
  virtual bool mask(int layer, int unit, const BatchEntry& entry, std::span<std::uint8_t> active) = 0;
};

/// How a layer's predictor compared with the truth, over (token, neuron) pairs; neurons with h != 0 are active.
struct LayerAudit {
  std::uint64_t n_tokens = 0;
  std::uint64_t n_active = 0;
  std::uint64_t n_predicted = 0;
  std::uint64_t n_hit = 0;  ///< active and predicted: recall = n_hit / n_active, precision = n_hit / n_predicted
};

/// Counters since construction or reset_stats().
struct Stats {
  std::int64_t n_prompt_tokens = 0;  ///< tokens of passes with more than one token
  double prompt_seconds = 0;
  std::int64_t n_generated_tokens = 0;  ///< tokens of single-token passes
  double generate_seconds = 0;
  std::vector<double> density;            ///< [n_layers] share of h != 0; -1 where nothing ran
  std::vector<double> predicted_density;  ///< [n_layers] share predicted active; -1 where no predictor ran
  std::vector<LayerAudit> audit;          ///< [n_layers]; empty without ContextOptions::audit
  double weight_bytes_per_token = 0;      ///< mean bytes of weights touched per single-token pass; 0 if none ran
  int n_threads = 0;
  int n_threads_batch = 0;
  std::string isa;  ///< kernels in use: "scalar", "avx2", ...
  Sparsity mode = Sparsity::kDense;
  std::uint64_t kv_bytes = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t workers_seen = 0;  ///< bit i: worker i (0 = the caller) has computed at least one chunk
};

/// Used by one thread at a time; a second concurrent call throws StateError. `cancel` may come from any thread.
class Context {
 public:
  /// Sizes are checked against free memory before anything is allocated. Throws InvalidArgument,
  /// UnsupportedError (a mode the model cannot do, with the reason), OutOfMemoryError.
  explicit Context(std::shared_ptr<const Model> model, const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Evaluates entries (positions of a sequence must continue where it stands, ascending) and returns the logits of
  /// those that want output, in batch order: [n_outputs, n_vocab], valid until the next call. Larger batches than
  /// n_batch run in several passes. Throws InvalidArgument (token, sequence or position out of range), StateError
  /// (context full: nothing was evaluated; context busy), CancelledError.
  std::span<const float> forward(const Batch& batch);

  /// One-sequence face (sequence 0): appends `tokens`, returns the last token's logits [n_vocab], or all of them
  /// [n_tokens, n_vocab]; valid until the next call. Errors as forward().
  std::span<const float> eval(std::span<const Token> tokens, bool all_logits = false);

  int n_past(int sequence = 0) const;
  /// Forgets everything from position `n` on. Throws InvalidArgument unless 0 <= n <= n_past.
  void truncate(int n, int sequence = 0);
  void reset();  ///< all sequences
  /// Makes `to` a copy of `from`; full blocks are shared, not copied.
  void copy_sequence(int from, int to);
  /// Ends a running forward() with CancelledError at the next layer; if none runs, the next one, unless reset() comes
  /// first. Any thread.
  void cancel() noexcept;
  /// Takes back a cancel() that has not ended anything yet.
  void clear_cancel() noexcept;

  const std::shared_ptr<const Model>& model() const;
  int n_ctx() const;
  int n_seqs() const;
  int n_batch() const;
  KvType kv_type() const;
  Sparsity sparsity() const;
  Stats stats() const;
  void reset_stats();

  /// Attaches a sink to a point (null: detaches). Must outlive its use. Not during forward().
  void set_tap(TapPoint point, TapSink* sink);
  void set_mask_source(MaskSource* source);

 private:
  friend struct engine::ContextAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace powerinfer
