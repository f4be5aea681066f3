// The feed-forward network, neuron by neuron. Three phases per layer: the predictor's first matrix; then, chunk by
// chunk of neurons, prediction, gate, up and activation; then the down projection. All modes take the same path and
// differ only in which neurons are listed, so that `exact` and `dense` give the same bits: a skipped neuron has h = 0
// and would have added nothing to an otherwise unchanged chain of sums.
#include <algorithm>
#include <cstring>

#include "ops/activation.h"
#include "ops/cpu_pass.h"
#include "quant/dtype.h"

namespace powerinfer::ops {

namespace {

using backend::FfnUnit;

// A column chunk of the down projection; y of one chunk stays in L1.
constexpr std::size_t kMinColumns = 128;
// Up to this many rows the block lists of a plain down projection pay; more rows need nearly every block.
constexpr std::size_t kMaxRowsForBlocks = 4;

/// One FFN evaluation: the operation, its buffers and how neurons are chosen.
struct Ffn {
  CpuPass& cpu;
  const FfnUnit& unit;
  Buffer& x;
  bool predicted;   // fc2's scores decide for rows that are not forced
  bool masked;      // space.mask decides
  bool audited;     // every neuron is computed, the mask is compared with the truth and applied afterwards
  bool skip_zeros;  // rows of up and down are skipped where h is already zero
  float threshold;
  const float* down_bias;  // null: none, or not this part's to add
  std::size_t d_ff;
  std::size_t n_hot_chunks;
  std::size_t n_chunks;

  const backend::NeuronRows& first() const { return unit.gate ? unit.gate : unit.up; }
  const float* first_bias() const { return unit.gate ? unit.gate_bias : unit.up_bias; }
  bool gated() const { return static_cast<bool>(unit.gate); }
  std::uint8_t* mask(std::size_t row) const { return cpu.space.mask + row * cpu.space.gate.stride; }
  std::int32_t* active(std::size_t row) const { return cpu.space.active + row * cpu.space.gate.stride; }
};

/// A run of neurons handled by one worker, all hot or all cold.
struct Chunk {
  std::size_t begin;
  std::size_t n;
  std::size_t first_row;  // of the part's tensors
  bool cold;
};

constexpr std::size_t chunks_of(std::size_t n_neurons) { return (n_neurons + kNeuronChunk - 1) / kNeuronChunk; }

Chunk chunk_at(const Ffn& f, std::size_t index) {
  const std::size_t n_hot = f.unit.n_hot();
  const bool cold = index >= f.n_hot_chunks;
  const std::size_t first_row = (cold ? index - f.n_hot_chunks : index) * kNeuronChunk;
  const std::size_t n_rows = cold ? f.d_ff - n_hot : n_hot;
  return {(cold ? n_hot : 0) + first_row, std::min(kNeuronChunk, n_rows - first_row), first_row, cold};
}

/// The job of computing all neurons of a chunk, whose weights begin with `first_row`, for all rows into `out`.
kernels::DotJob whole_job(const Ffn& f, const WeightView& weight, std::size_t first_row, const Buffer& in, Chunk chunk,
                          Buffer& out) {
  return {weight.row(first_row),
          weight.row_bytes,
          nullptr,
          chunk.n,
          weight.n_cols,
          in.input(),
          nullptr,
          f.cpu.n_rows,
          nullptr,
          0,
          out.f32 + chunk.begin,
          1,
          out.stride};
}

/// Computes weight . x for the (row, neuron) pairs for which wanted(row, neuron) holds; returns their number.
/// One row: gathers its neurons. Several: each weight row meets the rows that want it.
template <class Wanted>
std::size_t dot_listed(const Ffn& f, const backend::NeuronRows& weights, Chunk chunk, Buffer& out,
                       WorkerScratch& scratch, const Wanted& wanted) noexcept {
  const WeightView& weight = weights.part(chunk.cold);
  const auto dot = f.cpu.of(weight.type).dot;
  kernels::DotJob job = whole_job(f, weight, chunk.first_row, f.x, chunk, out);
  std::size_t total = 0;
  if (f.cpu.n_rows == 1) {
    for (std::size_t i = 0; i < chunk.n; ++i) {
      if (wanted(0, chunk.begin + i)) scratch.neurons[total++] = static_cast<std::int32_t>(i);
    }
    job.row_ids = scratch.neurons;
    job.n_rows = total;
    if (total > 0) dot(job);
    scratch.count.bytes += total * weight.row_bytes;
    return total;
  }
  job.n_rows = 1;
  job.token_ids = scratch.tokens;
  for (std::size_t i = 0; i < chunk.n; ++i) {
    job.n_tokens = 0;
    for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
      if (wanted(row, chunk.begin + i)) scratch.tokens[job.n_tokens++] = static_cast<std::int32_t>(row);
    }
    job.rows = weight.row(chunk.first_row + i);
    job.out = out.f32 + chunk.begin + i;
    if (job.n_tokens > 0) dot(job);
    total += job.n_tokens;
  }
  scratch.count.bytes += total * weight.row_bytes;
  return total;
}

/// Computes weight . x for all rows and all neurons of a chunk.
void dot_all(const Ffn& f, const backend::NeuronRows& weights, Chunk chunk, Buffer& out,
             WorkerScratch& scratch) noexcept {
  const WeightView& weight = weights.part(chunk.cold);
  f.cpu.of(weight.type).dot(whole_job(f, weight, chunk.first_row, f.x, chunk, out));
  scratch.count.bytes += chunk.n * f.cpu.n_rows * weight.row_bytes;
}

/// Scores of a chunk by sign bits.
void sign_chunk(const Ffn& f, Chunk chunk) noexcept {
  const WeightView& signs = f.unit.predictor.signs;
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    f.cpu.kernels.sign_scores({signs.row(chunk.begin), signs.row_bytes, chunk.n, f.x.width,
                               f.cpu.space.signs + row * signs.n_cols, f.cpu.space.gate.row(row) + chunk.begin});
  }
}

/// Scores of a chunk (kept in the gate buffer until the gate overwrites them) become mask bits.
void predict_chunk(const Ffn& f, Chunk chunk) noexcept {
  const backend::Predictor& predictor = f.unit.predictor;
  Workspace& space = f.cpu.space;
  if (predictor.kind == backend::PredictorKind::kSign) {
    sign_chunk(f, chunk);
  } else {
    f.cpu.of(predictor.fc2.type).dot(whole_job(f, predictor.fc2, chunk.begin, space.hidden, chunk, space.gate));
  }
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    if (space.forced[row] != 0) continue;
    float* scores = space.gate.row(row) + chunk.begin;
    if (predictor.fc2_bias != nullptr) f.cpu.kernels.add(predictor.fc2_bias + chunk.begin, chunk.n, scores);
    std::uint8_t* mask = f.mask(row) + chunk.begin;
    for (std::size_t i = 0; i < chunk.n; ++i) mask[i] = scores[i] >= f.threshold ? 1 : 0;
  }
}

/// gate = first . x + bias, zero where the mask forbids.
void first_chunk(const Ffn& f, Chunk chunk, WorkerScratch& scratch) noexcept {
  Buffer& gate = f.cpu.space.gate;
  const float* bias = f.first_bias();
  if (!f.masked || f.audited) {
    dot_all(f, f.first(), chunk, gate, scratch);
    for (std::size_t row = 0; row < f.cpu.n_rows && bias != nullptr; ++row) {
      f.cpu.kernels.add(bias + chunk.begin, chunk.n, gate.row(row) + chunk.begin);
    }
    return;
  }
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) std::fill_n(gate.row(row) + chunk.begin, chunk.n, 0.0F);
  scratch.count.n_predicted += dot_listed(f, f.first(), chunk, gate, scratch, [&](std::size_t row, std::size_t neuron) {
    return f.mask(row)[neuron] != 0;
  });
  if (bias == nullptr) return;
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    float* out = gate.row(row);
    for (std::size_t n_id = chunk.begin; n_id < chunk.begin + chunk.n; ++n_id) {
      if (f.mask(row)[n_id] != 0) out[n_id] += bias[n_id];
    }
  }
}

/// h *= up . x + bias, where h is not zero already (everywhere in dense mode).
void up_chunk(const Ffn& f, Chunk chunk, WorkerScratch& scratch) noexcept {
  Workspace& space = f.cpu.space;
  if (f.skip_zeros) {
    dot_listed(f, f.unit.up, chunk, space.up, scratch,
               [&](std::size_t row, std::size_t neuron) { return space.h.row(row)[neuron] != 0.0F; });
  } else {
    dot_all(f, f.unit.up, chunk, space.up, scratch);
  }
  const bool rectify = f.unit.activation.kind == backend::ActivationKind::kDrelu;
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    float* h = space.h.row(row) + chunk.begin;
    const float* up = space.up.row(row) + chunk.begin;
    const float* bias = f.unit.up_bias == nullptr ? nullptr : f.unit.up_bias + chunk.begin;
    for (std::size_t i = 0; i < chunk.n; ++i) {
      if (f.skip_zeros && h[i] == 0.0F) continue;
      float value = bias == nullptr ? up[i] : up[i] + bias[i];
      if (rectify && value <= 0.0F) value = 0.0F;
      h[i] *= value;
    }
  }
}

/// Compares the predictor's mask with what is non-zero, then zeroes what the mask forbids.
void audit_chunk(const Ffn& f, Chunk chunk, WorkerScratch& scratch) noexcept {
  Workspace& space = f.cpu.space;
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    const std::uint8_t* mask = f.mask(row) + chunk.begin;
    float* h = space.h.row(row) + chunk.begin;
    float* gate = space.gate.row(row) + chunk.begin;
    LayerAudit count;
    for (std::size_t i = 0; i < chunk.n; ++i) {
      const std::uint64_t active = h[i] != 0.0F ? 1 : 0;
      count.n_active += active;
      count.n_predicted += mask[i];
      count.n_hit += active & mask[i];
      if (f.masked && mask[i] == 0) h[i] = gate[i] = 0.0F;
    }
    if (f.masked) scratch.count.n_predicted += count.n_predicted;
    if (space.forced[row] != 0) continue;
    scratch.count.audit.n_active += count.n_active;
    scratch.count.audit.n_predicted += count.n_predicted;
    scratch.count.audit.n_hit += count.n_hit;
  }
}

/// Lists the neurons that the down projection adds, and rounds h where down's type asks for it.
void list_chunk(const Ffn& f, std::size_t chunk_index, Chunk chunk, WorkerScratch& scratch) noexcept {
  Workspace& space = f.cpu.space;
  const bool round = !f.unit.transposed_down && quant::traits(f.unit.down.hot.type).int8_input;
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    const float* h = space.h.row(row) + chunk.begin;
    std::int32_t* ids = f.active(row) + chunk.begin;
    std::int32_t n_listed = 0;
    std::size_t n_nonzero = 0;
    for (std::size_t i = 0; i < chunk.n; ++i) {
      const bool nonzero = h[i] != 0.0F;
      n_nonzero += nonzero ? 1 : 0;
      ids[n_listed] = static_cast<std::int32_t>(chunk.first_row + i);
      n_listed += nonzero || !f.skip_zeros ? 1 : 0;
    }
    space.chunk_count[row * f.n_chunks + chunk_index] = n_listed;
    scratch.count.n_nonzero += n_nonzero;
    if (!round) continue;
    const std::size_t at = row * space.h.stride + chunk.begin;
    f.cpu.kernels.quantize_input(space.h.f32 + at, chunk.n, space.h.q + at, space.h.d + at / kernels::kBlock,
                                 space.h.sum + at / kernels::kBlock);
  }
}

void neuron_chunk(const Ffn& f, std::size_t chunk_index, WorkerScratch& scratch) noexcept {
  const Chunk chunk = chunk_at(f, chunk_index);
  Workspace& space = f.cpu.space;
  if (f.predicted || f.audited) predict_chunk(f, chunk);
  first_chunk(f, chunk, scratch);
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    float* h = space.h.row(row) + chunk.begin;
    std::memcpy(h, space.gate.row(row) + chunk.begin, chunk.n * sizeof(float));
    activate(f.unit.activation, f.cpu.kernels, chunk.n, h);
  }
  if (f.gated()) up_chunk(f, chunk, scratch);
  if (f.audited) audit_chunk(f, chunk, scratch);
  list_chunk(f, chunk_index, chunk, scratch);
}

/// Closes the gaps between the chunks' lists of active neurons.
void compact(const Ffn& f, std::size_t row) noexcept {
  std::int32_t* ids = f.active(row);
  const std::int32_t* counts = f.cpu.space.chunk_count + row * f.n_chunks;
  std::size_t n = 0;
  for (std::size_t chunk = 0; chunk < f.n_chunks; ++chunk) {
    const auto count = static_cast<std::size_t>(counts[chunk]);
    if (chunk == f.n_hot_chunks) f.cpu.space.n_active_hot[row] = static_cast<std::int32_t>(n);
    std::memmove(ids + n, ids + chunk_at(f, chunk).begin, count * sizeof(std::int32_t));
    n += count;
  }
  if (f.n_hot_chunks == f.n_chunks) f.cpu.space.n_active_hot[row] = static_cast<std::int32_t>(n);
  f.cpu.space.n_active[row] = static_cast<std::int32_t>(n);
}

void start_output(const Ffn& f, float* y, std::size_t begin, std::size_t n) noexcept {
  // Adding +0 turns a bias of -0 into +0, so that adding a skipped zero would not change it.
  for (std::size_t i = 0; i < n; ++i) y[i] = f.down_bias == nullptr ? 0.0F : f.down_bias[begin + i] + 0.0F;
}

/// Adds the listed neurons' h * down row, the hot part's and then the cold part's, to columns of y.
void add_listed(const Ffn& f, std::size_t row, std::size_t begin, std::size_t n, float* y) noexcept {
  const CpuPass& cpu = f.cpu;
  const backend::NeuronRows& down = f.unit.down;
  const auto n_hot = static_cast<std::size_t>(cpu.space.n_active_hot[row]);
  const std::size_t n_cold = static_cast<std::size_t>(cpu.space.n_active[row]) - n_hot;
  const std::int32_t* ids = f.active(row);
  const float* h = cpu.space.h.row(row);
  if (n_hot > 0) cpu.of(down.hot.type).axpy({down.hot.data, down.hot.row_bytes, ids, n_hot, begin, n, h, y});
  if (n_cold > 0) {
    cpu.of(down.cold.type)
        .axpy({down.cold.data, down.cold.row_bytes, ids + n_hot, n_cold, begin, n, h + f.unit.n_hot(), y});
  }
}

/// y = sum over listed neurons of h * down row, split by columns: each column is one chain in neuron order.
void down_transposed(const Ffn& f, Buffer& out) {
  CpuPass& cpu = f.cpu;
  const std::size_t n_columns = out.width;
  cpu.for_rows([&](std::size_t row, int) noexcept { compact(f, row); });
  const std::size_t splits = std::max<std::size_t>(1, static_cast<std::size_t>(cpu.pass.n_threads) * 2 / cpu.n_rows);
  const std::size_t columns = std::max(kMinColumns, (n_columns / splits + 63) / 64 * 64);
  const std::size_t n_column_chunks = (n_columns + columns - 1) / columns;
  cpu.parallel(cpu.n_rows * n_column_chunks, [&](std::size_t index, int) noexcept {
    const std::size_t row = index / n_column_chunks;
    const std::size_t begin = index % n_column_chunks * columns;
    const std::size_t n = std::min(columns, n_columns - begin);
    float* y = out.row(row) + begin;
    start_output(f, y, begin, n);
    add_listed(f, row, begin, n, y);
  });
}

/// Lists the blocks of 32 neurons in which any row has a non-zero h; returns their number.
std::size_t list_blocks(const Ffn& f) {
  const std::size_t n_blocks = (f.d_ff + kernels::kBlock - 1) / kernels::kBlock;
  std::size_t n_listed = 0;
  for (std::size_t block = 0; block < n_blocks; ++block) {
    const std::size_t begin = block * kernels::kBlock;
    const std::size_t n = std::min(kernels::kBlock, f.d_ff - begin);
    bool any = false;
    for (std::size_t row = 0; row < f.cpu.n_rows && !any; ++row) {
      const float* h = f.cpu.space.h.row(row) + begin;
      any = std::any_of(h, h + n, [](float value) { return value != 0.0F; });
    }
    if (any) f.cpu.space.blocks[n_listed++] = static_cast<std::int32_t>(block);
  }
  return n_listed;
}

/// y = down . h with rows of d_ff values; blocks without an active neuron are skipped. Returns the share visited.
double down_plain(const Ffn& f, Buffer& out) {
  CpuPass& cpu = f.cpu;
  const WeightView& down = f.unit.down.hot;
  const std::size_t n_blocks = (f.d_ff + kernels::kBlock - 1) / kernels::kBlock;
  const bool by_blocks = f.skip_zeros && cpu.n_rows <= kMaxRowsForBlocks;
  const std::size_t n_visited = by_blocks ? list_blocks(f) : n_blocks;
  const std::int32_t* blocks = n_visited < n_blocks ? cpu.space.blocks : nullptr;
  constexpr std::size_t kRows = 32;
  const auto dot = cpu.of(down.type).dot;
  cpu.parallel((down.n_rows + kRows - 1) / kRows, [&](std::size_t chunk, int) noexcept {
    const std::size_t begin = chunk * kRows;
    const std::size_t n = std::min(kRows, down.n_rows - begin);
    dot({down.row(begin), down.row_bytes, nullptr, n, down.n_cols, cpu.space.h.input(), nullptr, cpu.n_rows, blocks,
         n_visited, out.f32 + begin, 1, out.stride});
    if (f.down_bias == nullptr) return;
    for (std::size_t row = 0; row < cpu.n_rows; ++row) {
      cpu.kernels.add(f.down_bias + begin, n, out.row(row) + begin);
    }
  });
  return static_cast<double>(n_visited) / static_cast<double>(n_blocks);
}

/// Asks the mask source about every row; rows it leaves alone keep the mode's own rule.
bool force_masks(const Ffn& f, int unit_index) {
  Workspace& space = f.cpu.space;
  bool any = false;
  for (std::size_t row = 0; row < f.cpu.n_rows; ++row) {
    space.forced[row] = 0;
    if (f.cpu.pass.mask_source == nullptr) continue;
    const bool forced = f.cpu.pass.mask_source->mask(static_cast<int>(f.cpu.layer), unit_index,
                                                     f.cpu.pass.rows[row].entry, {f.mask(row), f.d_ff});
    space.forced[row] = forced ? 1 : 0;
    any = any || forced;
  }
  return any;
}

/// What the workers counted since the last call.
WorkCount take_counts(Workspace& space) {
  WorkCount sum;
  for (WorkerScratch& worker : space.workers) {
    sum.n_predicted += worker.count.n_predicted;
    sum.bytes += worker.count.bytes;
    sum.n_nonzero += worker.count.n_nonzero;
    sum.audit.n_active += worker.count.audit.n_active;
    sum.audit.n_predicted += worker.count.audit.n_predicted;
    sum.audit.n_hit += worker.count.audit.n_hit;
    worker.count = {};
  }
  return sum;
}

/// Bytes that a token's prediction touches.
std::uint64_t predictor_bytes(const Ffn& f) {
  const backend::Predictor& predictor = f.unit.predictor;
  const std::uint64_t bias = predictor.fc2_bias == nullptr ? 0 : f.d_ff * sizeof(float);
  return predictor.fc1.n_bytes() + predictor.fc2.n_bytes() + predictor.signs.n_bytes() + bias;
}

/// Bytes of the down projection that a single-token pass touched.
std::uint64_t down_bytes(const Ffn& f, double plain_share) {
  const backend::NeuronRows& down = f.unit.down;
  if (!f.unit.transposed_down) {
    return static_cast<std::uint64_t>(plain_share * static_cast<double>(down.hot.n_bytes()));
  }
  const auto n_hot = static_cast<std::uint64_t>(f.cpu.space.n_active_hot[0]);
  return n_hot * down.hot.row_bytes +
         (static_cast<std::uint64_t>(f.cpu.space.n_active[0]) - n_hot) * down.cold.row_bytes;
}

void add_counts(const Ffn& f, double down_share, backend::LayerCounters& counters) {
  const WorkCount sum = take_counts(f.cpu.space);
  const std::uint64_t n_all = f.d_ff * f.cpu.n_rows;
  counters.n_neurons += n_all;
  counters.n_nonzero += sum.n_nonzero;
  if (f.predicted) {
    counters.n_masked += n_all;
    counters.n_predicted += sum.n_predicted;
  }
  if (f.audited) {
    counters.audit.n_tokens +=
        static_cast<std::uint64_t>(std::count(f.cpu.space.forced, f.cpu.space.forced + f.cpu.n_rows, std::uint8_t{0}));
    counters.audit.n_active += sum.audit.n_active;
    counters.audit.n_predicted += sum.audit.n_predicted;
    counters.audit.n_hit += sum.audit.n_hit;
  }
  if (!f.cpu.pass.count_bytes) return;
  counters.bytes += sum.bytes + down_bytes(f, down_share);
  if (f.predicted || f.audited) counters.bytes += predictor_bytes(f);
}

void show(CpuPass& cpu, TapPoint point, int unit_index, const Buffer& buffer, std::size_t width) {
  TapSink* sink = cpu.pass.taps[static_cast<std::size_t>(point)];
  if (sink != nullptr) show_rows(cpu, *sink, point, unit_index, buffer, width);
}

/// Chunks of neurons, then the down projection. Returns the share of a plain down projection's blocks visited.
double run(const Ffn& f, Buffer& out) {
  for (const backend::NeuronRows* rows : {&f.first(), &f.unit.up}) {
    if (rows->hot) round_input(f.cpu, f.x, rows->hot.type);
    if (rows->cold) round_input(f.cpu, f.x, rows->cold.type);
  }
  f.cpu.parallel(f.n_chunks, [&](std::size_t chunk, int worker) noexcept {
    neuron_chunk(f, chunk, f.cpu.space.workers[static_cast<std::size_t>(worker)]);
  });
  out.rounded = false;
  if (!f.unit.transposed_down) return down_plain(f, out);
  down_transposed(f, out);
  return 1.0;
}

/// The sign bits of the rows of `z`.
void take_signs(CpuPass& cpu, const Buffer& z) {
  const std::size_t n_words = cpu.plan.sign_words;
  cpu.for_rows([&](std::size_t row, int) noexcept {
    const float* values = z.row(row);
    std::uint32_t* words = cpu.space.signs + row * n_words;
    std::fill_n(words, n_words, 0U);
    for (std::size_t i = 0; i < z.width; ++i) words[i / 32] |= (values[i] < 0.0F ? 1U : 0U) << i % 32;
  });
}

/// What a predictor makes of its input before it looks at neurons: sign bits, or the first matrix (and its ReLU).
void prepare_prediction(CpuPass& cpu, const backend::Predictor& predictor, Buffer& z) {
  if (predictor.kind == backend::PredictorKind::kSign) {
    take_signs(cpu, z);
    return;
  }
  Buffer& hidden = cpu.space.hidden;
  const std::size_t rank = predictor.fc1.n_rows;
  multiply(cpu, z, predictor.fc1, nullptr, hidden.f32, hidden.stride);
  if (predictor.kind == backend::PredictorKind::kMlp) {
    const backend::Activation relu{backend::ActivationKind::kRelu, 0.0F};
    cpu.for_rows([&](std::size_t row, int) noexcept { activate(relu, cpu.kernels, rank, hidden.row(row)); });
  }
  hidden.width = rank;
  hidden.rounded = false;
  round_input(cpu, hidden, predictor.fc2.type);
}

Ffn make_ffn(CpuPass& cpu, const backend::FfnOp& op) {
  const std::size_t d_ff = op.unit.d_ff;
  return {.cpu = cpu,
          .unit = op.unit,
          .x = cpu.space.slot(op.x),
          .predicted = false,
          .masked = false,
          .audited = false,
          .skip_zeros = true,
          .threshold = 0.0F,
          .down_bias = op.unit.down_bias,
          .d_ff = d_ff,
          .n_hot_chunks = chunks_of(op.unit.n_hot()),
          .n_chunks = chunks_of(op.unit.n_hot()) + chunks_of(d_ff - op.unit.n_hot())};
}

}  // namespace

void ffn(CpuPass& cpu, const backend::FfnOp& op, backend::LayerCounters& counters) {
  const backend::LayerMode& mode = cpu.pass.modes[cpu.layer];
  Ffn f = make_ffn(cpu, op);
  f.predicted = f.masked = mode.mode == Sparsity::kPredictor && op.unit.predictor;
  f.skip_zeros = mode.mode != Sparsity::kDense;
  f.threshold = mode.threshold;
  f.audited = cpu.pass.audit && op.unit.predictor;
  if (force_masks(f, op.unit_index)) {
    f.audited = f.audited && f.predicted;  // else the mask of the other rows is not the predictor's
    f.masked = true;
    f.skip_zeros = true;
    for (std::size_t row = 0; row < cpu.n_rows; ++row) {
      if (cpu.space.forced[row] == 0) std::fill_n(f.mask(row), f.d_ff, std::uint8_t{1});
    }
  }
  if (f.predicted || f.audited) prepare_prediction(cpu, op.unit.predictor, cpu.space.slot(op.z));
  const double down_share = run(f, cpu.space.slot(op.out));
  add_counts(f, down_share, counters);
  show(cpu, TapPoint::kGate, op.unit_index, cpu.space.gate, f.d_ff);
  show(cpu, TapPoint::kH, op.unit_index, cpu.space.h, f.d_ff);
}

void ffn_part(CpuPass& cpu, const backend::FfnOp& op, const std::uint8_t* active, float* y) {
  Ffn f = make_ffn(cpu, op);
  f.masked = true;
  f.down_bias = nullptr;
  for (std::size_t row = 0; row < cpu.n_rows; ++row) std::copy_n(active + row * f.d_ff, f.d_ff, f.mask(row));
  Buffer& out = cpu.space.slot(op.out);
  run(f, out);
  take_counts(cpu.space);  // a part is not counted: the statistics are those of passes
  for (std::size_t row = 0; row < cpu.n_rows; ++row) cpu.kernels.add(out.row(row), out.width, y + row * out.width);
}

}  // namespace powerinfer::ops
