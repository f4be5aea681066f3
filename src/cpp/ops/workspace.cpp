#include "ops/workspace.h"

#include <algorithm>

namespace powerinfer::ops {

namespace {

constexpr std::size_t kAlign = 64;

/// Hands out consecutive aligned pieces of one block; with a null base it only measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  void operator()(T*& pointer, std::size_t count) {
    if (base_ != nullptr) pointer = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace

template <class Allocator>
void Workspace::lay_out(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits, Allocator& allocate) {
  using backend::Slot;
  const std::size_t rows = limits.max_rows;
  const auto buffer = [&](Buffer& target, std::size_t width) {
    target.width = width;
    target.stride = (width + 63) / 64 * 64;
    allocate(target.f32, rows * target.stride);
    allocate(target.q, rows * target.stride);
    allocate(target.d, rows * target.stride / kernels::kBlock);
    allocate(target.sum, rows * target.stride / kernels::kBlock);
  };
  for (const Slot each :
       {Slot::kResidual, Slot::kNormed, Slot::kNormed2, Slot::kProjected, Slot::kLayerInput, Slot::kOutput}) {
    buffer(slot(each), plan.d_model);
  }
  buffer(slot(Slot::kQkv), plan.attention.q_width() + 2 * plan.attention.kv_width());
  buffer(slot(Slot::kAttention), plan.attention.q_width());
  const std::size_t d_ff = (plan.d_ff_max + 63) / 64 * 64;
  const std::size_t n_chunks = (plan.d_ff_max + kNeuronChunk - 1) / kNeuronChunk + 1;  // hot and cold chunks
  buffer(hidden, plan.rank_max);
  buffer(gate, plan.d_ff_max);
  buffer(up, plan.d_ff_max);
  buffer(h, plan.d_ff_max);
  allocate(signs, rows * plan.sign_words);
  allocate(mask, rows * d_ff);
  allocate(forced, rows);
  allocate(active, rows * d_ff);
  allocate(chunk_count, rows * n_chunks);
  allocate(n_active, rows);
  allocate(n_active_hot, rows);
  allocate(blocks, d_ff / kernels::kBlock);
  allocate(rope, rows * plan.attention.rope_dim);
  workers.resize(static_cast<std::size_t>(limits.n_threads));
  for (WorkerScratch& worker : workers) {
    allocate(worker.tokens, rows);
    allocate(worker.neurons, kNeuronChunk);
    allocate(worker.scores, backend::kKvBlock);
    allocate(worker.partial, plan.attention.head_dim);
  }
}

Workspace::Workspace(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits)
    : storage_(bytes(plan, limits)) {
  Carver carve(storage_.data());
  lay_out(plan, limits, carve);
}

std::uint64_t Workspace::bytes(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits) {
  Workspace sketch;
  Carver measure(nullptr);
  sketch.lay_out(plan, limits, measure);
  return measure.used();
}

}  // namespace powerinfer::ops
