// Embedding rows, norms and rotary positions.
#include <cmath>

#include "ops/cpu_pass.h"

namespace powerinfer::ops {

void embed(CpuPass& cpu, const backend::EmbedOp& op) {
  Buffer& out = cpu.space.slot(backend::Slot::kResidual);
  Buffer& position_row = cpu.space.slot(backend::Slot::kProjected);
  const auto& tokens = cpu.of(op.tokens.type);
  cpu.for_rows([&](std::size_t row, int) noexcept {
    const BatchEntry& entry = cpu.pass.rows[row].entry;
    tokens.dequantize(op.tokens.row(static_cast<std::size_t>(entry.token)), out.width, out.row(row));
    if (!op.positions) return;
    const std::size_t index = static_cast<std::size_t>(entry.position) + op.position_offset;
    cpu.of(op.positions.type).dequantize(op.positions.row(index), out.width, position_row.row(row));
    cpu.kernels.add(position_row.row(row), out.width, out.row(row));
  });
  out.rounded = false;
  position_row.rounded = false;
}

void norm(CpuPass& cpu, const backend::NormOp& op) {
  const Buffer& in = cpu.space.slot(op.in);
  Buffer& out = cpu.space.slot(op.out);
  cpu.for_rows([&](std::size_t row, int) noexcept {
    if (op.kind == backend::NormKind::kRms) {
      cpu.kernels.rms_norm(in.row(row), op.weight, in.width, op.epsilon, out.row(row));
    } else {
      cpu.kernels.layer_norm(in.row(row), op.weight, op.bias, in.width, op.epsilon, out.row(row));
    }
  });
  out.rounded = false;
}

void prepare_rope(CpuPass& cpu) {
  const std::size_t n_pairs = cpu.plan.attention.rope_dim / 2;
  if (n_pairs == 0) return;
  cpu.for_rows([&](std::size_t row, int) noexcept {
    float* table = cpu.space.rope + row * 2 * n_pairs;
    const double position = cpu.pass.rows[row].entry.position;
    for (std::size_t pair = 0; pair < n_pairs; ++pair) {
      const double angle = position * cpu.plan.attention.rope_inv_freq[pair];
      table[2 * pair] = static_cast<float>(std::cos(angle));
      table[2 * pair + 1] = static_cast<float>(std::sin(angle));
    }
  });
}

void rope(CpuPass& cpu, const backend::RopeOp& op) {
  Buffer& qkv = cpu.space.slot(backend::Slot::kQkv);
  const backend::AttentionShape& shape = cpu.plan.attention;
  const std::size_t n_pairs = shape.rope_dim / 2;
  const bool interleaved = op.style == backend::RopeStyle::kInterleaved;
  const std::size_t step = interleaved ? 2 : 1;         // from one pair to the next
  const std::size_t apart = interleaved ? 1 : n_pairs;  // between the two members of a pair
  cpu.for_rows([&](std::size_t row, int) noexcept {
    const float* table = cpu.space.rope + row * 2 * n_pairs;
    float* head = qkv.row(row);
    for (std::size_t index = 0; index < shape.n_heads + shape.n_kv_heads; ++index, head += shape.head_dim) {
      for (std::size_t pair = 0; pair < n_pairs; ++pair) {
        float& a = head[pair * step];
        float& b = head[pair * step + apart];
        const float cosine = table[2 * pair];
        const float sine = table[2 * pair + 1];
        const float rotated = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = rotated;
      }
    }
  });
  qkv.rounded = false;
}

}  // namespace powerinfer::ops
