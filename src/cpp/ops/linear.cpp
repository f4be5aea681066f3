// Dense matrix products over the rows of a pass.
#include <algorithm>

#include "ops/cpu_pass.h"
#include "quant/dtype.h"

namespace powerinfer::ops {

namespace {

// A chunk of a single-token product reads about this much: enough to amortise the claim, little enough to balance.
constexpr std::size_t kChunkBytes = 32 * 1024;
constexpr std::size_t kBatchChunkRows = 32;  // chunks of a batch are bound by arithmetic
constexpr std::size_t kTokenTile = 32;       // tokens whose inputs stay in L1/L2 while a chunk's rows pass

std::size_t rows_per_chunk(const WeightView& weight, std::size_t n_tokens) {
  if (n_tokens > 1) return kBatchChunkRows;
  return std::max<std::size_t>(8, kChunkBytes / weight.row_bytes / 8 * 8);
}

std::size_t chunks_of(const WeightView& weight, std::size_t n_tokens) {
  const std::size_t step = rows_per_chunk(weight, n_tokens);
  return (weight.n_rows + step - 1) / step;
}

/// Computes one chunk of rows for all tokens.
void multiply_chunk(CpuPass& cpu, const Buffer& input, const WeightView& weight, const float* bias, std::size_t chunk,
                    float* out, std::size_t out_stride) noexcept {
  const std::size_t step = rows_per_chunk(weight, cpu.n_rows);
  const std::size_t first = chunk * step;
  const std::size_t n = std::min(step, weight.n_rows - first);
  const auto dot = cpu.of(weight.type).dot;
  for (std::size_t token = 0; token < cpu.n_rows; token += kTokenTile) {
    kernels::DotInput x = input.input();
    x.f32 += token * x.stride;
    x.q += token * x.stride;
    x.d += token * x.stride / kernels::kBlock;
    x.sum += token * x.stride / kernels::kBlock;
    const std::size_t n_tokens = std::min(kTokenTile, cpu.n_rows - token);
    float* target = out + token * out_stride + first;
    dot({weight.row(first), weight.row_bytes, nullptr, n, weight.n_cols, x, nullptr, n_tokens, nullptr, 0, target, 1,
         out_stride});
    if (bias == nullptr) continue;
    for (std::size_t t = 0; t < n_tokens; ++t) cpu.kernels.add(bias + first, n, target + t * out_stride);
  }
}

}  // namespace

const kernels::DTypeKernels& CpuPass::of(DType type) const { return kernels.types[quant::dtype_index(type)]; }

void round_input(CpuPass& cpu, Buffer& buffer, DType type) {
  if (buffer.rounded || !quant::traits(type).int8_input) return;
  cpu.for_rows([&](std::size_t row, int) noexcept {
    const std::size_t at = row * buffer.stride;
    cpu.kernels.quantize_input(buffer.f32 + at, buffer.width, buffer.q + at, buffer.d + at / kernels::kBlock,
                               buffer.sum + at / kernels::kBlock);
  });
  buffer.rounded = true;
}

void multiply(CpuPass& cpu, Buffer& input, const WeightView& weight, const float* bias, float* out,
              std::size_t out_stride) {
  round_input(cpu, input, weight.type);
  cpu.parallel(chunks_of(weight, cpu.n_rows), [&](std::size_t chunk, int) noexcept {
    multiply_chunk(cpu, input, weight, bias, chunk, out, out_stride);
  });
}

void linear(CpuPass& cpu, const backend::LinearOp& op) {
  Buffer& in = cpu.space.slot(op.in);
  Buffer& out = cpu.space.slot(op.out);
  std::size_t n_chunks = 0;
  for (const auto& part : op.parts) {
    round_input(cpu, in, part.weight.type);
    n_chunks += chunks_of(part.weight, cpu.n_rows);
  }
  cpu.parallel(n_chunks, [&](std::size_t chunk, int) noexcept {
    for (const auto& part : op.parts) {
      const std::size_t n = chunks_of(part.weight, cpu.n_rows);
      if (chunk < n) {
        multiply_chunk(cpu, in, part.weight, part.bias, chunk, out.f32 + part.column, out.stride);
        return;
      }
      chunk -= n;
    }
  });
  out.rounded = false;
}

void logits(CpuPass& cpu, const backend::LogitsOp& op) {
  multiply(cpu, cpu.space.slot(backend::Slot::kOutput), op.weight, op.bias, cpu.pass.logits, op.weight.n_rows);
}

}  // namespace powerinfer::ops
