#include "powerinfer/context.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <system_error>

#include "base/cpu.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "engine/context_access.h"
#include "engine/kv_cache.h"
#include "engine/model_impl.h"
#include "ops/cpu_backend.h"
#include "parallel/thread_pool.h"
#include "powerinfer/error.h"

namespace powerinfer {

namespace {

constexpr int kDefaultCtx = 4096;
constexpr int kMaxThreads = 1024;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int in_range(const char* name, int value, int least, int most) {
  if (value < least || value > most) {
    throw InvalidArgument(base::text(name, ": expected ", least, " to ", most, ", got ", value));
  }
  return value;
}

/// Fills in defaults and checks every option.
ContextOptions resolve(const Model& model, ContextOptions options) {
  constexpr int kMaxCount = 1 << 24;
  const auto limit = static_cast<int>(model.impl().loaded.max_positions);
  if (options.n_ctx == 0) {
    options.n_ctx = std::min(model.n_ctx_train(), kDefaultCtx);
    base::log(LogLevel::kInfo, base::text("context of ", options.n_ctx, " tokens (the model was trained with ",
                                          model.n_ctx_train(), "); set n_ctx for another size"));
  }
  in_range("n_ctx", options.n_ctx, 1, kMaxCount);
  if (limit > 0 && options.n_ctx > limit) {
    throw InvalidArgument(
        base::text("n_ctx: expected at most ", limit, ", the rows of the model's position table, got ", options.n_ctx));
  }
  if (options.n_ctx > model.n_ctx_train()) {
    base::log(LogLevel::kWarning,
              base::text("n_ctx ", options.n_ctx, " exceeds the ", model.n_ctx_train(),
                         " tokens the model was trained with; quality past them is not to be expected"));
  }
  in_range("n_seqs", options.n_seqs, 1, 1 << 16);
  in_range("n_batch", options.n_batch, 1, kMaxCount);
  options.n_batch = static_cast<int>(
      std::min<std::int64_t>(options.n_batch, static_cast<std::int64_t>(options.n_ctx) * options.n_seqs));
  if (options.n_threads == 0) options.n_threads = model.options().n_threads;
  if (options.n_threads == 0) options.n_threads = base::usable_physical_cores();
  if (options.n_threads_batch == 0) options.n_threads_batch = options.n_threads;
  in_range("n_threads", options.n_threads, 1, kMaxThreads);
  in_range("n_threads_batch", options.n_threads_batch, 1, kMaxThreads);
  options.sparsity = model.impl().resolve(options.sparsity.value_or(model.default_sparsity()));
  if (options.audit && !model.impl().has_predictors()) {
    throw UnsupportedError(base::text(model.file().path().string(), ": audit: the file holds no predictor to audit"));
  }
  if (options.threshold.empty()) options.threshold = model.options().threshold;
  return options;
}

/// Marks a context as in use; a second user gets an error instead of a race.
class Busy {
 public:
  explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
    if (flag_.exchange(true, std::memory_order_acquire)) {
      throw StateError("the context is in use by another thread; give each thread a context of its own");
    }
  }
  ~Busy() { flag_.store(false, std::memory_order_release); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

struct Context::Impl {
  Impl(std::shared_ptr<const Model> given, const ContextOptions& wanted)
      : model(std::move(given)),
        options(resolve(*model, wanted)),
        modes(model->impl().layer_modes(*options.sparsity, options.threshold)),
        limits{static_cast<std::size_t>(options.n_batch), std::max(options.n_threads, options.n_threads_batch)},
        kv_bytes(engine::KvCache::bytes(plan(), options.kv_type, options.n_seqs, options.n_ctx)) {
    check_memory();
    kv.emplace(plan(), options.kv_type, options.n_seqs, options.n_ctx);
    prepare();
    rows.reserve(limits.max_rows);
    outputs.reserve(limits.max_rows);
    batch.reserve(limits.max_rows);
    n_new.assign(static_cast<std::size_t>(options.n_seqs), 0);
    logits.resize(static_cast<std::size_t>(model->n_vocab()));
  }

  const backend::ModelPlan& plan() const { return model->impl().loaded.plan; }

  void prepare() {
    try {
      executor = model->impl().backend->prepare(plan(), backend::all_layers(plan()), limits);
    } catch (const std::system_error& error) {
      throw OutOfMemoryError(
          base::text("cannot start ", limits.n_threads, " threads (", error.what(), "); use a smaller n_threads"));
    }
  }

  void check_memory() const {
    const std::uint64_t scratch = model->impl().backend->scratch_bytes(plan(), limits) +
                                  static_cast<std::uint64_t>(model->n_vocab()) * sizeof(float);
    const std::uint64_t available = base::available_memory_bytes();
    constexpr std::uint64_t kMiB = 1024 * 1024;
    if (available == 0 || (kv_bytes < available && scratch < available - kv_bytes)) return;  // 0: not told
    throw OutOfMemoryError(base::text("a context of ", options.n_ctx, " tokens and ", options.n_seqs,
                                      " sequence(s) needs ", kv_bytes / kMiB + 1, " MiB for its cache and ",
                                      scratch / kMiB + 1, " MiB of scratch, ", available / kMiB,
                                      " MiB are available; use a smaller n_ctx, n_seqs or n_batch"));
  }

  void check_batch(const Batch& entries);
  void evaluate(const Batch& entries);
  void run_pass(std::span<const BatchEntry> entries, bool is_single, float* target);
  std::span<const float> forward(const Batch& entries);

  std::shared_ptr<const Model> model;
  ContextOptions options;
  std::vector<backend::LayerMode> modes;
  backend::ExecutorLimits limits;
  std::uint64_t kv_bytes;
  std::optional<engine::KvCache> kv;
  std::unique_ptr<backend::Executor> executor;
  std::array<TapSink*, kTapPoints> taps{};
  MaskSource* mask_source = nullptr;
  std::atomic<bool> busy{false};
  std::atomic<bool> cancelled{false};

  // Reused by every call.
  Batch batch;
  std::vector<backend::Row> rows;
  std::vector<std::uint32_t> outputs;
  std::vector<int> n_new;  // [n_seqs] tokens a batch adds
  std::vector<float> logits;
  std::size_t n_outputs = 0;

  std::int64_t n_prompt_tokens = 0;
  std::int64_t n_generated_tokens = 0;
  double prompt_seconds = 0;
  double generate_seconds = 0;
};

void Context::Impl::check_batch(const Batch& entries) {
  if (entries.empty()) throw InvalidArgument("the batch is empty; pass at least one token");
  std::ranges::fill(n_new, 0);
  for (const BatchEntry& entry : entries) {
    if (entry.token < 0 || entry.token >= model->n_vocab()) {
      throw InvalidArgument(
          base::text("token ", entry.token, " is out of range: the model has ", model->n_vocab(), " tokens"));
    }
    if (entry.sequence < 0 || entry.sequence >= options.n_seqs) {
      throw InvalidArgument(
          base::text("sequence ", entry.sequence, " is out of range: the context has n_seqs = ", options.n_seqs));
    }
    int& added = n_new[static_cast<std::size_t>(entry.sequence)];
    const int expected = kv->n_past(entry.sequence) + added;
    if (expected >= options.n_ctx) {
      throw StateError(base::text("the context is full: sequence ", entry.sequence, " holds ",
                                  kv->n_past(entry.sequence), " of ", options.n_ctx, " tokens, the batch has ",
                                  entries.size(),
                                  "; nothing was evaluated; "
                                  "use a larger n_ctx, truncate() or reset()"));
    }
    if (entry.position != expected) {
      throw InvalidArgument(base::text("position ", entry.position, " of sequence ", entry.sequence, ": expected ",
                                       expected, ", where the sequence stands; truncate() it to go back"));
    }
    ++added;
  }
}

void Context::Impl::run_pass(std::span<const BatchEntry> entries, bool is_single, float* target) {
  std::ranges::fill(n_new, 0);
  for (const BatchEntry& entry : entries) ++n_new[static_cast<std::size_t>(entry.sequence)];
  for (int sequence = 0; sequence < options.n_seqs; ++sequence) {
    kv->reserve(sequence, kv->n_past(sequence) + n_new[static_cast<std::size_t>(sequence)]);
  }
  rows.clear();
  outputs.clear();
  for (const BatchEntry& entry : entries) {
    if (entry.wants_output) outputs.push_back(static_cast<std::uint32_t>(rows.size()));
    rows.push_back({entry, kv->table(entry.sequence)});
  }
  const auto start = std::chrono::steady_clock::now();
  executor->submit({rows, outputs, target, kv->view(), modes, is_single ? options.n_threads : options.n_threads_batch,
                    &cancelled, taps.data(), mask_source, is_single, options.audit});
  if (executor->wait() == backend::PassResult::kCancelled) {
    cancelled.store(false);
    throw CancelledError("evaluation was cancelled; the context stands at the last finished block");
  }
  (is_single ? generate_seconds : prompt_seconds) += seconds_since(start);
  (is_single ? n_generated_tokens : n_prompt_tokens) += static_cast<std::int64_t>(entries.size());
  for (const BatchEntry& entry : entries) kv->advance(entry.sequence);
}

std::span<const float> Context::Impl::forward(const Batch& entries) {
  check_batch(entries);
  const auto n_vocab = static_cast<std::size_t>(model->n_vocab());
  const auto n_wanted = static_cast<std::size_t>(std::ranges::count_if(entries, &BatchEntry::wants_output));
  if (logits.size() < n_wanted * n_vocab) {
    const std::uint64_t available = base::available_memory_bytes();
    if (available != 0 && n_wanted * n_vocab * sizeof(float) > available) {
      throw OutOfMemoryError(base::text("logits of ", n_wanted, " tokens need ", n_wanted * n_vocab * sizeof(float),
                                        " bytes, which are not available; ask for fewer outputs at once"));
    }
    logits.resize(n_wanted * n_vocab);
  }
  n_outputs = 0;
  for (std::size_t begin = 0; begin < entries.size(); begin += limits.max_rows) {
    const std::size_t n = std::min(limits.max_rows, entries.size() - begin);
    run_pass({entries.data() + begin, n}, entries.size() == 1, logits.data() + n_outputs * n_vocab);
    n_outputs += outputs.size();
  }
  return {logits.data(), n_outputs * n_vocab};
}

Context::Context(std::shared_ptr<const Model> model, const ContextOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Context::~Context() = default;

std::span<const float> Context::forward(const Batch& batch) {
  const Busy guard(impl_->busy);
  return impl_->forward(batch);
}

std::span<const float> Context::eval(std::span<const Token> tokens, bool all_logits) {
  const Busy guard(impl_->busy);
  impl_->batch.clear();
  int position = impl_->kv->n_past(0);
  for (const Token token : tokens) impl_->batch.push_back({token, position++, 0, all_logits});
  if (!tokens.empty()) impl_->batch.back().wants_output = true;
  return impl_->forward(impl_->batch);
}

int Context::n_past(int sequence) const {
  return impl_->kv->n_past(in_range("sequence", sequence, 0, impl_->options.n_seqs - 1));
}

void Context::truncate(int n, int sequence) {
  const Busy guard(impl_->busy);
  in_range("sequence", sequence, 0, impl_->options.n_seqs - 1);
  impl_->kv->truncate(sequence, in_range("truncate", n, 0, impl_->kv->n_past(sequence)));
}

void Context::reset() {
  const Busy guard(impl_->busy);
  for (int sequence = 0; sequence < impl_->options.n_seqs; ++sequence) impl_->kv->truncate(sequence, 0);
  impl_->cancelled.store(false);
}

void Context::copy_sequence(int from, int to) {
  const Busy guard(impl_->busy);
  in_range("sequence", from, 0, impl_->options.n_seqs - 1);
  in_range("sequence", to, 0, impl_->options.n_seqs - 1);
  impl_->kv->copy(from, to);
}

void Context::cancel() noexcept { impl_->cancelled.store(true); }
void Context::clear_cancel() noexcept { impl_->cancelled.store(false); }

const std::shared_ptr<const Model>& Context::model() const { return impl_->model; }
int Context::n_ctx() const { return impl_->options.n_ctx; }
int Context::n_seqs() const { return impl_->options.n_seqs; }
int Context::n_batch() const { return impl_->options.n_batch; }
KvType Context::kv_type() const { return impl_->options.kv_type; }
Sparsity Context::sparsity() const { return *impl_->options.sparsity; }

Stats Context::stats() const {
  const Busy guard(impl_->busy);
  Stats stats;
  stats.n_prompt_tokens = impl_->n_prompt_tokens;
  stats.prompt_seconds = impl_->prompt_seconds;
  stats.n_generated_tokens = impl_->n_generated_tokens;
  stats.generate_seconds = impl_->generate_seconds;
  std::uint64_t ffn_bytes = 0;
  const auto share = [](std::uint64_t part, std::uint64_t all) {
    return all == 0 ? -1.0 : static_cast<double>(part) / static_cast<double>(all);
  };
  for (const backend::LayerCounters& layer : impl_->executor->counters()) {
    stats.density.push_back(share(layer.n_nonzero, layer.n_neurons));
    stats.predicted_density.push_back(share(layer.n_predicted, layer.n_masked));
    ffn_bytes += layer.bytes;
    if (impl_->options.audit) stats.audit.push_back(layer.audit);
  }
  if (impl_->n_generated_tokens > 0) {
    stats.weight_bytes_per_token = static_cast<double>(impl_->executor->dense_bytes_per_token()) +
                                   static_cast<double>(ffn_bytes) / static_cast<double>(impl_->n_generated_tokens);
  }
  stats.n_threads = impl_->options.n_threads;
  stats.n_threads_batch = impl_->options.n_threads_batch;
  stats.isa = impl_->model->impl().backend->name();
  stats.mode = *impl_->options.sparsity;
  stats.kv_bytes = impl_->kv_bytes;
  stats.scratch_bytes = impl_->executor->scratch_bytes();
  if (const parallel::ThreadPool* pool = ops::thread_pool_of(*impl_->executor))
    stats.workers_seen = pool->workers_seen();
  return stats;
}

void Context::reset_stats() {
  const Busy guard(impl_->busy);
  impl_->executor->reset_counters();
  if (parallel::ThreadPool* pool = ops::thread_pool_of(*impl_->executor)) pool->clear_workers_seen();
  impl_->n_prompt_tokens = 0;
  impl_->n_generated_tokens = 0;
  impl_->prompt_seconds = 0;
  impl_->generate_seconds = 0;
}

void Context::set_tap(TapPoint point, TapSink* sink) {
  const Busy guard(impl_->busy);
  impl_->taps[static_cast<std::size_t>(point)] = sink;
}

void Context::set_mask_source(MaskSource* source) {
  const Busy guard(impl_->busy);
  impl_->mask_source = source;
}

backend::Executor& engine::ContextAccess::executor(Context& context) { return *context.impl_->executor; }

}  // namespace powerinfer
