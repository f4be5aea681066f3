// What every CPU operation gets: kernels, threads, buffers and the pass it works on.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "kernels/kernel_table.h"
#include "ops/workspace.h"
#include "parallel/thread_pool.h"

namespace powerinfer::ops {

struct CpuPass {
  const kernels::KernelTable& kernels;
  parallel::ThreadPool& pool;
  Workspace& space;
  const backend::ModelPlan& plan;
  const backend::Pass& pass;
  std::size_t n_rows;  // rows the current operation works on
  std::size_t layer = 0;

  /// Runs body(chunk, worker) over the pass's threads.
  template <class Body>
  void parallel(std::size_t n_chunks, const Body& body) {
    pool.run(n_chunks, pass.n_threads, body);
  }
  /// Runs body(row, worker) for each row, in parallel when there are several.
  template <class Body>
  void for_rows(const Body& body) {
    parallel(n_rows, body);
  }
  const kernels::DTypeKernels& of(DType type) const;
};

/// Makes the int8 rounding of the first n_rows rows, if `type` reads it and it is not there yet.
void round_input(CpuPass& cpu, Buffer& buffer, DType type);

void embed(CpuPass& cpu, const backend::EmbedOp& op);
void norm(CpuPass& cpu, const backend::NormOp& op);
void linear(CpuPass& cpu, const backend::LinearOp& op);
void rope(CpuPass& cpu, const backend::RopeOp& op);
void attention(CpuPass& cpu);
void ffn(CpuPass& cpu, const backend::FfnOp& op, backend::LayerCounters& counters);
/// y [n_rows, d_model] += the neurons marked in `active` [n_rows, d_ff], from the input in op.x; no bias, no counters.
void ffn_part(CpuPass& cpu, const backend::FfnOp& op, const std::uint8_t* active, float* y);
void logits(CpuPass& cpu, const backend::LogitsOp& op);

/// Shows the rows of a buffer to a sink, one call per row.
void show_rows(CpuPass& cpu, TapSink& sink, TapPoint point, int unit, const Buffer& buffer, std::size_t width);

/// Fills the cos/sin table of the pass's positions.
void prepare_rope(CpuPass& cpu);

/// out[row, r] = weight row r . input row (+ bias[r]) for all rows of the pass.
void multiply(CpuPass& cpu, Buffer& input, const WeightView& weight, const float* bias, float* out,
              std::size_t out_stride);

}  // namespace powerinfer::ops
