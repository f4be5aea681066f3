// The interface between the engine and whoever computes. A backend prepares a model's plan for a largest batch, then
// runs passes by submit and wait. The CPU's lives in ops/; a device is another implementation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/plan.h"
#include "powerinfer/context.h"

namespace powerinfer::backend {

inline constexpr std::size_t kKvBlock = 256;  ///< positions per cache block; attention is split by these

/// The key/value cache as kernels see it. Block b of layer l starts at
/// data + (l * n_blocks + b) * block_bytes: keys [n_kv_heads, kKvBlock, head_dim], then values likewise.
struct KvView {
  std::uint8_t* data = nullptr;
  DType type = DType::kF16;
  std::size_t n_blocks = 0;
  std::size_t block_bytes = 0;
  std::size_t head_bytes = 0;  // kKvBlock * head_dim * element size
  std::size_t row_bytes = 0;   // head_dim * element size
};

/// One row of a pass.
struct Row {
  BatchEntry entry;
  const std::int32_t* blocks;  // the sequence's block table: position p lives in blocks[p / kKvBlock]
};

/// Which decision rules an FFN layer of this context follows.
struct LayerMode {
  Sparsity mode = Sparsity::kDense;  // kDense, kExact or kPredictor: already resolved for this layer
  float threshold = 0.0F;
};

/// Work counters of one layer, summed over passes.
struct LayerCounters {
  std::uint64_t n_neurons = 0;    // d_ff * rows
  std::uint64_t n_predicted = 0;  // neurons a mask let through (rows where a mask decided)
  std::uint64_t n_masked = 0;     // d_ff * rows where a mask decided
  std::uint64_t n_nonzero = 0;    // h != 0
  std::uint64_t bytes = 0;        // FFN weight bytes touched
  LayerAudit audit;               // where Pass::audit asks for it and the layer has a predictor
};

/// Everything a pass needs beside the prepared plan.
struct Pass {
  std::span<const Row> rows;
  std::span<const std::uint32_t> outputs;  // indices of rows that want logits, ascending
  float* logits = nullptr;                 // [outputs, n_vocab]
  KvView kv;
  std::span<const LayerMode> modes;  // [n_layers]
  int n_threads = 1;
  const std::atomic<bool>* cancelled = nullptr;
  TapSink* const* taps = nullptr;  // [kTapPoints], null members: nobody listens
  MaskSource* mask_source = nullptr;
  bool count_bytes = false;  // add to LayerCounters::bytes (single-token passes)
  bool audit = false;        // compute every neuron and compare the predictor with what is non-zero
};

/// A part of a layer's FFN, for a backend that computes some neurons while another computes the rest.
struct FfnPart {
  std::size_t layer;  // within the executor's range, counted from the model's first
  std::size_t n_rows;
  const float* x;              // [n_rows, d_model] normalised FFN input
  const std::uint8_t* active;  // [n_rows, d_ff] 1: this part computes the neuron
  float* y;                    // [n_rows, d_model] += sum over active neurons of h * down row, the bias left out
  int n_threads = 1;
};

enum class PassResult { kDone, kCancelled };

/// Layers [begin, end) of a model. The prologue belongs to layer 0, the epilogue to the last.
struct LayerRange {
  std::size_t begin;
  std::size_t end;
};
inline LayerRange all_layers(const ModelPlan& plan) { return {0, plan.layers.size()}; }

/// A range of layers made ready on a backend, with its buffers. Used by one thread at a time.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Starts a pass; what `pass` points to must live until wait() returns.
  virtual void submit(const Pass& pass) = 0;
  /// Ends when the pass has; kCancelled: stopped between layers. Rethrows what taps and mask sources threw.
  virtual PassResult wait() = 0;
  /// The residual stream [d_model] of a row: where a range that does not begin with layer 0 reads it before submit(),
  /// and where one that does not end with the last layer leaves it after wait().
  virtual std::span<float> residual(std::size_t row) = 0;
  /// Computes a part of an FFN and adds it to part.y; nothing of a pass is touched.
  virtual void submit_ffn(const FfnPart& part) = 0;
  virtual std::span<const LayerCounters> counters() const = 0;
  virtual void reset_counters() = 0;
  /// Weight bytes every single-token pass touches outside the FFNs (one embedding row, attention, logits).
  virtual std::uint64_t dense_bytes_per_token() const = 0;
  virtual std::uint64_t scratch_bytes() const = 0;
};

struct ExecutorLimits {
  std::size_t max_rows = 1;
  int n_threads = 1;  // most threads any pass will use
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  ///< for the CPU the instruction set in use
  /// Bytes prepare() would allocate, so that they can be checked first.
  virtual std::uint64_t scratch_bytes(const ModelPlan& plan, const ExecutorLimits& limits) const = 0;
  /// `plan` must outlive the executor.
  virtual std::unique_ptr<Executor> prepare(const ModelPlan& plan, LayerRange layers, const ExecutorLimits& limits) = 0;
};

}  // namespace powerinfer::backend
