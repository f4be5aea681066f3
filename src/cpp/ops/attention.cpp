// Causal attention over the cache: per (row, head), block by block of 256 positions with an online softmax, always in
// block order, so that a row's bits depend neither on threads nor on its batch.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu_pass.h"

namespace powerinfer::ops {

namespace {

/// Where a (layer, block, kv head)'s keys begin; values lie n_kv_heads * head_bytes further.
std::uint8_t* keys_at(const CpuPass& cpu, std::int32_t block, std::size_t kv_head) {
  const backend::KvView& kv = cpu.pass.kv;
  return kv.data + (cpu.layer * kv.n_blocks + static_cast<std::size_t>(block)) * kv.block_bytes +
         kv_head * kv.head_bytes;
}

void store(const CpuPass& cpu, const float* x, std::uint8_t* target) noexcept {
  const std::size_t n = cpu.plan.attention.head_dim;
  if (cpu.pass.kv.type == DType::kF16) {
    cpu.kernels.f32_to_f16(x, n, reinterpret_cast<std::uint16_t*>(target));
  } else {
    std::memcpy(target, x, n * sizeof(float));
  }
}

void store_row(const CpuPass& cpu, std::size_t row) noexcept {
  const backend::AttentionShape& shape = cpu.plan.attention;
  const backend::KvView& kv = cpu.pass.kv;
  const backend::Row& entry = cpu.pass.rows[row];
  const auto position = static_cast<std::size_t>(entry.entry.position);
  const std::int32_t block = entry.blocks[position / backend::kKvBlock];
  const float* keys = cpu.space.slot(backend::Slot::kQkv).row(row) + shape.q_width();
  const float* values = keys + shape.kv_width();
  for (std::size_t head = 0; head < shape.n_kv_heads; ++head) {
    std::uint8_t* target = keys_at(cpu, block, head) + position % backend::kKvBlock * kv.row_bytes;
    store(cpu, keys + head * shape.head_dim, target);
    store(cpu, values + head * shape.head_dim, target + shape.n_kv_heads * kv.head_bytes);
  }
}

void attend(const CpuPass& cpu, std::size_t row, std::size_t head, WorkerScratch& scratch) noexcept {
  const backend::AttentionShape& shape = cpu.plan.attention;
  const backend::KvView& kv = cpu.pass.kv;
  const kernels::KernelTable& kernels = cpu.kernels;
  const kernels::DTypeKernels& cache = cpu.of(kv.type);
  const std::size_t head_dim = shape.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  const float* query = cpu.space.slot(backend::Slot::kQkv).row(row) + head * head_dim;
  float* out = cpu.space.slot(backend::Slot::kAttention).row(row) + head * head_dim;
  const std::size_t kv_head = head / (shape.n_heads / shape.n_kv_heads);
  const backend::Row& entry = cpu.pass.rows[row];
  const std::size_t n_positions = static_cast<std::size_t>(entry.entry.position) + 1;

  float max = 0.0F;
  float sum = 0.0F;
  for (std::size_t begin = 0; begin < n_positions; begin += backend::kKvBlock) {
    const std::size_t n = std::min(backend::kKvBlock, n_positions - begin);
    const std::uint8_t* keys = keys_at(cpu, entry.blocks[begin / backend::kKvBlock], kv_head);
    const std::uint8_t* values = keys + shape.n_kv_heads * kv.head_bytes;
    cache.dot({keys,
               kv.row_bytes,
               nullptr,
               n,
               head_dim,
               {query, nullptr, nullptr, nullptr, 0},
               nullptr,
               1,
               nullptr,
               0,
               scratch.scores,
               1,
               0});
    kernels.scale(scale, n, scratch.scores);
    const float block_max = kernels.max(scratch.scores, n);
    const float block_sum = kernels.exp_sum(block_max, n, scratch.scores);
    float* partial = begin == 0 ? out : scratch.partial;
    std::fill_n(partial, head_dim, 0.0F);
    cache.axpy({values, kv.row_bytes, nullptr, n, 0, head_dim, scratch.scores, partial});
    if (begin == 0) {
      max = block_max;
      sum = block_sum;
      continue;
    }
    const float new_max = std::max(max, block_max);
    const float keep = std::exp(max - new_max);
    const float take = std::exp(block_max - new_max);
    kernels.scale(keep, head_dim, out);
    kernels.scale(take, head_dim, partial);
    kernels.add(partial, head_dim, out);
    sum = sum * keep + block_sum * take;
    max = new_max;
  }
  kernels.scale(1.0F / sum, head_dim, out);
}

}  // namespace

void attention(CpuPass& cpu) {
  cpu.for_rows([&](std::size_t row, int) noexcept { store_row(cpu, row); });
  const std::size_t n_heads = cpu.plan.attention.n_heads;
  cpu.parallel(cpu.n_rows * n_heads, [&](std::size_t unit, int worker) noexcept {
    // Heads vary slowest: neighbours share a head's keys in the cache.
    attend(cpu, unit % cpu.n_rows, unit / cpu.n_rows, cpu.space.workers[static_cast<std::size_t>(worker)]);
  });
  cpu.space.slot(backend::Slot::kAttention).rounded = false;
}

}  // namespace powerinfer::ops
