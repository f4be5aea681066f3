#include "ops/cpu_backend.h"

#include <algorithm>
#include <exception>

#include "ops/cpu_pass.h"

namespace powerinfer::ops {

namespace {

using backend::Slot;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};

std::uint64_t dense_bytes(const backend::ModelPlan& plan) {
  std::uint64_t bytes = 0;
  const auto count = [&](const backend::LayerPlan& layer) {
    for (const backend::Op& op : layer.ops) {
      if (const auto* linear_op = std::get_if<backend::LinearOp>(&op)) {
        for (const auto& part : linear_op->parts) bytes += part.weight.n_bytes();
      } else if (const auto* logits_op = std::get_if<backend::LogitsOp>(&op)) {
        bytes += logits_op->weight.n_bytes();
      } else if (const auto* embed_op = std::get_if<backend::EmbedOp>(&op)) {
        bytes += embed_op->tokens.row_bytes + embed_op->positions.row_bytes;
      }
    }
  };
  count(plan.prologue);
  for (const backend::LayerPlan& layer : plan.layers) count(layer);
  count(plan.epilogue);
  return bytes;
}

class CpuExecutor final : public backend::Executor {
 public:
  CpuExecutor(const kernels::KernelTable& kernels, const backend::ModelPlan& plan, backend::LayerRange layers,
              const backend::ExecutorLimits& limits)
      : kernels_(kernels),
        plan_(plan),
        layers_(layers),
        space_(plan, limits),
        scratch_bytes_(Workspace::bytes(plan, limits)),
        dense_bytes_(dense_bytes(plan)),
        pool_(limits.n_threads),
        counters_(plan.layers.size()) {}

  void submit(const backend::Pass& pass) override {
    error_ = nullptr;
    try {
      result_ = run(pass);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  backend::PassResult wait() override {
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
    return result_;
  }

  std::span<float> residual(std::size_t row) override {
    Buffer& buffer = space_.slot(Slot::kResidual);
    return {buffer.row(row), buffer.width};
  }

  void submit_ffn(const backend::FfnPart& part) override {
    const backend::FfnOp& op = plan_.layers[part.layer].ffn();
    Buffer& x = space_.slot(op.x);
    for (std::size_t row = 0; row < part.n_rows; ++row) std::copy_n(part.x + row * x.width, x.width, x.row(row));
    x.rounded = false;
    backend::Pass pass;
    pass.n_threads = part.n_threads;
    CpuPass cpu{kernels_, pool_, space_, plan_, pass, part.n_rows, part.layer};
    ffn_part(cpu, op, part.active, part.y);
  }

  std::span<const backend::LayerCounters> counters() const override { return counters_; }
  void reset_counters() override { std::fill(counters_.begin(), counters_.end(), backend::LayerCounters{}); }
  std::uint64_t dense_bytes_per_token() const override { return dense_bytes_; }
  std::uint64_t scratch_bytes() const override { return scratch_bytes_; }
  parallel::ThreadPool& pool() { return pool_; }

 private:
  backend::PassResult run(const backend::Pass& pass) {
    CpuPass cpu{kernels_, pool_, space_, plan_, pass, pass.rows.size()};
    prepare_rope(cpu);
    if (layers_.begin == 0) run_ops(cpu, plan_.prologue);
    for (cpu.layer = layers_.begin; cpu.layer < layers_.end; ++cpu.layer) {
      if (pass.cancelled->load(std::memory_order_relaxed)) return backend::PassResult::kCancelled;
      run_ops(cpu, plan_.layers[cpu.layer]);
    }
    if (layers_.end == plan_.layers.size() && !pass.outputs.empty()) run_ops(cpu, plan_.epilogue);
    return backend::PassResult::kDone;
  }

  void run_ops(CpuPass& cpu, const backend::LayerPlan& layer) {
    for (const backend::Op& op : layer.ops) run_op(cpu, op);
  }

  void run_op(CpuPass& cpu, const backend::Op& op) {
    std::visit(Overloaded{
                   [&](const backend::EmbedOp& each) { embed(cpu, each); },
                   [&](const backend::NormOp& each) { norm(cpu, each); },
                   [&](const backend::LinearOp& each) { linear(cpu, each); },
                   [&](const backend::RopeOp& each) { rope(cpu, each); },
                   [&](const backend::AttentionOp&) { attention(cpu); },
                   [&](const backend::AddOp& each) { add(cpu, each); },
                   [&](const backend::CopyOp& each) { copy(cpu, each); },
                   [&](const backend::FfnOp& each) { ffn(cpu, each, counters_[cpu.layer]); },
                   [&](const backend::TapOp& each) { tap(cpu, each); },
                   [&](const backend::GatherOutputsOp&) { gather_outputs(cpu); },
                   [&](const backend::LogitsOp& each) { logits(cpu, each); },
               },
               op);
  }

  void add(CpuPass& cpu, const backend::AddOp& op) {
    const Buffer& x = space_.slot(op.x);
    Buffer& y = space_.slot(op.y);
    cpu.for_rows([&](std::size_t row, int) noexcept { kernels_.add(x.row(row), x.width, y.row(row)); });
    y.rounded = false;
  }

  void copy(CpuPass& cpu, const backend::CopyOp& op) {
    const Buffer& in = space_.slot(op.in);
    Buffer& out = space_.slot(op.out);
    cpu.for_rows([&](std::size_t row, int) noexcept { std::copy_n(in.row(row), in.width, out.row(row)); });
    out.rounded = false;
  }

  void tap(CpuPass& cpu, const backend::TapOp& op) {
    TapSink* sink = cpu.pass.taps[static_cast<std::size_t>(op.point)];
    const Buffer& buffer = space_.slot(op.slot);
    if (sink != nullptr) show_rows(cpu, *sink, op.point, 0, buffer, buffer.width);
  }

  void gather_outputs(CpuPass& cpu) {
    const Buffer& residual = space_.slot(Slot::kResidual);
    Buffer& out = space_.slot(Slot::kOutput);
    for (std::size_t i = 0; i < cpu.pass.outputs.size(); ++i) {
      std::copy_n(residual.row(cpu.pass.outputs[i]), out.width, out.row(i));
    }
    out.rounded = false;
    cpu.n_rows = cpu.pass.outputs.size();
  }

  const kernels::KernelTable& kernels_;
  const backend::ModelPlan& plan_;
  backend::LayerRange layers_;
  Workspace space_;
  std::uint64_t scratch_bytes_;
  std::uint64_t dense_bytes_;
  parallel::ThreadPool pool_;
  std::vector<backend::LayerCounters> counters_;
  backend::PassResult result_ = backend::PassResult::kDone;
  std::exception_ptr error_;
};

class CpuBackend final : public backend::Backend {
 public:
  explicit CpuBackend(const kernels::KernelTable& kernels) : kernels_(kernels) {}
  std::string name() const override { return kernels_.name; }
  std::uint64_t scratch_bytes(const backend::ModelPlan& plan, const backend::ExecutorLimits& limits) const override {
    return Workspace::bytes(plan, limits);
  }
  std::unique_ptr<backend::Executor> prepare(const backend::ModelPlan& plan, backend::LayerRange layers,
                                             const backend::ExecutorLimits& limits) override {
    return std::make_unique<CpuExecutor>(kernels_, plan, layers, limits);
  }

 private:
  const kernels::KernelTable& kernels_;
};

}  // namespace

std::unique_ptr<backend::Backend> make_cpu_backend(const kernels::KernelTable& kernels) {
  return std::make_unique<CpuBackend>(kernels);
}

parallel::ThreadPool* thread_pool_of(backend::Executor& executor) {
  auto* cpu = dynamic_cast<CpuExecutor*>(&executor);
  return cpu == nullptr ? nullptr : &cpu->pool();
}

void show_rows(CpuPass& cpu, TapSink& sink, TapPoint point, int unit, const Buffer& buffer, std::size_t width) {
  for (std::size_t row = 0; row < cpu.n_rows; ++row) {
    sink.on_tap({point, static_cast<int>(cpu.layer), unit, 1, width, buffer.row(row), &cpu.pass.rows[row].entry});
  }
}

}  // namespace powerinfer::ops
