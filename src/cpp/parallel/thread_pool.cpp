#include "parallel/thread_pool.h"

#include <algorithm>

#include "base/check.h"
#include "base/cpu.h"

namespace powerinfer::parallel {

namespace {

// Some tens of microseconds of spinning cover the gaps between the phases of a token; after that an idle context
// costs nothing.
constexpr int kSpinRounds = 30000;
constexpr std::uint64_t kLeftMask = 0xFFFFFFFFU;
constexpr std::uint64_t kFairBit = std::uint64_t{1} << 32;
constexpr int kPhaseShift = 33;

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  PI_DCHECK(n_threads >= 1);
  // More threads than cores: spinning would take the core from the thread that has the chunk.
  spin_rounds_ = n_threads <= base::usable_logical_cores() ? kSpinRounds : 0;
  workers_.reserve(static_cast<std::size_t>(n_threads - 1));
  try {
    for (int worker = 1; worker < n_threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
  } catch (...) {
    stop_workers();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() {
  stop_.store(true);
  wake_parked();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::wake_parked() {
  {
    const std::lock_guard lock(park_mutex_);
  }  // whoever registered as parked is waiting by now
  unpark_.notify_all();
  end_rest_.notify_all();
}

void ThreadPool::rest(int worker) {
  std::unique_lock lock(park_mutex_);
  end_rest_.wait(lock, [&] {
    return worker < n_active_.load(std::memory_order_relaxed) || stop_.load(std::memory_order_relaxed);
  });
}

void ThreadPool::park(std::uint64_t last_phase) {
  std::unique_lock lock(park_mutex_);
  // Both sides order (publish, look for parked) against (register, look for a ticket): no wake-up is lost.
  n_parked_.fetch_add(1, std::memory_order_seq_cst);
  unpark_.wait(lock, [&] {
    return ticket_.load(std::memory_order_seq_cst) >> kPhaseShift != last_phase ||
           stop_.load(std::memory_order_seq_cst);
  });
  n_parked_.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::mark_seen(int worker) {
  const std::uint64_t bit = std::uint64_t{1} << std::min(worker, 63);
  if ((workers_seen_.load(std::memory_order_relaxed) & bit) == 0) {
    workers_seen_.fetch_or(bit, std::memory_order_relaxed);
  }
}

void ThreadPool::run_erased(Task task, std::size_t n_chunks, int n_active) {
  if (n_chunks == 0) return;
  n_active = std::clamp(n_active, 1, n_threads());
  if (n_active == 1 || n_chunks == 1) {
    mark_seen(0);
    for (std::size_t chunk = 0; chunk < n_chunks; ++chunk) task.function(task.body, chunk, 0);
    return;
  }
  function_.store(task.function, std::memory_order_relaxed);
  body_.store(task.body, std::memory_order_relaxed);
  n_chunks_.store(static_cast<std::uint32_t>(n_chunks), std::memory_order_relaxed);
  const bool fair = claiming_ == Claiming::kFair;
  const int n_wanted = fair ? n_threads() : n_active;
  const bool grows = n_wanted > n_active_.load(std::memory_order_relaxed);
  n_active_.store(n_wanted, std::memory_order_relaxed);
  n_done_.store(0, std::memory_order_relaxed);
  const std::uint64_t phase = (ticket_.load(std::memory_order_relaxed) >> kPhaseShift) + 1;
  const std::uint64_t ticket = phase << kPhaseShift | (fair ? kFairBit : 0) | n_chunks;
  ticket_.store(ticket, std::memory_order_seq_cst);
  if (grows || n_parked_.load(std::memory_order_seq_cst) > 0) wake_parked();
  take_part(ticket, 0);
  for (int round = 0; n_done_.load(std::memory_order_acquire) != n_chunks; ++round) {
    if (round >= spin_rounds_) std::this_thread::yield();
  }
}

void ThreadPool::take_part(std::uint64_t ticket, int worker) {
  if ((ticket & kFairBit) != 0) {
    take_own_chunks(ticket & kLeftMask, worker);
    return;
  }
  const std::uint64_t phase = ticket >> kPhaseShift;
  if (worker >= n_active_.load(std::memory_order_relaxed)) return;
  std::uint64_t seen = ticket_.load(std::memory_order_acquire);
  while (seen >> kPhaseShift == phase && (seen & kLeftMask) != 0) {
    // Read before the claim: if the claim succeeds, the phase was open and these are its values.
    const Task task{function_.load(std::memory_order_relaxed), body_.load(std::memory_order_relaxed)};
    const std::size_t n_chunks = n_chunks_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    task.function(task.body, n_chunks - (seen & kLeftMask), worker);
    mark_seen(worker);
    n_done_.fetch_add(1, std::memory_order_acq_rel);
    seen = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::take_own_chunks(std::size_t n_chunks, int worker) {
  // A worker with a chunk of its own holds the phase open, so what it reads here belongs to this phase.
  if (static_cast<std::size_t>(worker) >= n_chunks) return;
  const Task task{function_.load(std::memory_order_relaxed), body_.load(std::memory_order_relaxed)};
  const auto step = static_cast<std::size_t>(n_threads());
  for (std::size_t chunk = static_cast<std::size_t>(worker); chunk < n_chunks; chunk += step) {
    task.function(task.body, chunk, worker);
    mark_seen(worker);
    n_done_.fetch_add(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::work(int worker) {
  std::uint64_t last_phase = 0;
  while (true) {
    std::uint64_t ticket = 0;
    int round = 0;
    while (true) {
      ticket = ticket_.load(std::memory_order_acquire);
      if (ticket >> kPhaseShift != last_phase) break;
      if (stop_.load(std::memory_order_relaxed)) return;
      if (round++ < spin_rounds_) continue;
      park(last_phase);
      round = 0;
    }
    last_phase = ticket >> kPhaseShift;
    take_part(ticket, worker);
    if (worker >= n_active_.load(std::memory_order_relaxed)) rest(worker);
  }
}

}  // namespace powerinfer::parallel
