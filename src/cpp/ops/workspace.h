// Buffers of the CPU backend: planned once for the largest pass, nothing is allocated afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/aligned_buffer.h"
#include "kernels/kernel_table.h"

namespace powerinfer::ops {

/// Rows of floats with room for their int8 rounding, which is made when a dot first asks for it.
struct Buffer {
  float* f32 = nullptr;         // [max_rows, stride]
  std::int8_t* q = nullptr;     // [max_rows, stride]
  float* d = nullptr;           // [max_rows, stride / 32]
  std::int32_t* sum = nullptr;  // [max_rows, stride / 32]
  std::size_t width = 0;
  std::size_t stride = 0;  // width rounded up to a multiple of 64
  bool rounded = false;    // q, d, sum belong to f32

  float* row(std::size_t index) { return f32 + index * stride; }
  const float* row(std::size_t index) const { return f32 + index * stride; }
  kernels::DotInput input() const { return {f32, q, d, sum, stride}; }
};

/// Neurons are handed out in chunks of this many: small enough to balance, large enough for one neuron list.
inline constexpr std::size_t kNeuronChunk = 128;

/// What one worker counts during an FFN; on its own cache line.
struct alignas(64) WorkCount {
  std::uint64_t n_predicted = 0;
  std::uint64_t bytes = 0;  // of gate and up rows computed
  std::uint64_t n_nonzero = 0;
  LayerAudit audit;
};

struct WorkerScratch {
  std::int32_t* tokens = nullptr;   // [max_rows]
  std::int32_t* neurons = nullptr;  // [kNeuronChunk]
  float* scores = nullptr;          // [kKvBlock]
  float* partial = nullptr;         // [head_dim]
  WorkCount count;
};

class Workspace {
 public:
  Workspace(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits);

  static std::uint64_t bytes(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits);

  Buffer& slot(backend::Slot slot) { return slots_[static_cast<std::size_t>(slot)]; }

  Buffer hidden;                   // [rows, rank_max] predictor's inner layer
  Buffer gate;                     // [rows, d_ff_max] first pre-activation
  Buffer up;                       // [rows, d_ff_max]
  Buffer h;                        // [rows, d_ff_max]
  std::uint32_t* signs = nullptr;  // [rows, sign_words] sign bits of a sign predictor's input
  std::uint8_t* mask = nullptr;    // [rows, d_ff_max] 1: active
  std::uint8_t* forced = nullptr;  // [rows] 1: the mask source decided
  std::int32_t* active = nullptr;  // [rows, d_ff_max] rows of h != 0 in their part, per neuron chunk, then compacted
  std::int32_t* chunk_count = nullptr;   // [rows, n_chunks] ids per neuron chunk
  std::int32_t* n_active = nullptr;      // [rows] ids after compaction
  std::int32_t* n_active_hot = nullptr;  // [rows] of them in the hot part; they come first
  std::int32_t* blocks = nullptr;        // [d_ff_max / 32] blocks of h with an active neuron
  float* rope = nullptr;                 // [rows, rope_dim / 2, 2] cos, sin
  std::vector<WorkerScratch> workers;    // [n_threads]

 private:
  template <class Allocator>
  void lay_out(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits, Allocator& allocate);
  Workspace() = default;

  std::array<Buffer, static_cast<std::size_t>(backend::Slot::kCount)> slots_;
  base::AlignedBuffer storage_;
};

}  // namespace powerinfer::ops
