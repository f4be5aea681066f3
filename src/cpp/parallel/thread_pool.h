// A pool of threads for short phases: the caller publishes a phase, everybody claims chunks of it, the phase ends when
// its chunks are done. Workers spin for a while between phases, then park; a late or parked worker is never waited for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace powerinfer::parallel {

/// How chunks find their workers. kFair (chunk c goes to worker c mod n_threads, so that every worker takes part) is
/// for tests: results must not depend on who computes what.
enum class Claiming { kDynamic, kFair };

class ThreadPool {
 public:
  /// `n_threads` >= 1 counts the calling thread. Workers are started at once.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs body(chunk, worker) for every chunk in [0, n_chunks) on the first `n_active` threads (worker 0 is the
  /// caller) and returns when all are done. `body` must be noexcept; phases do not nest. One caller at a time.
  template <class Body>
  void run(std::size_t n_chunks, int n_active, const Body& body) {
    static_assert(std::is_nothrow_invocable_v<const Body&, std::size_t, int>);
    run_erased({&call<Body>, &body}, n_chunks, n_active);
  }

  void set_claiming(Claiming claiming) { claiming_ = claiming; }
  /// Bit i: worker i has computed a chunk since the last clear (workers above 63 share the last bit).
  std::uint64_t workers_seen() const { return workers_seen_.load(std::memory_order_relaxed); }
  void clear_workers_seen() { workers_seen_.store(0, std::memory_order_relaxed); }

 private:
  struct Task {
    void (*function)(const void* body, std::size_t chunk, int worker) noexcept;
    const void* body;
  };
  template <class Body>
  static void call(const void* body, std::size_t chunk, int worker) noexcept {
    (*static_cast<const Body*>(body))(chunk, worker);
  }

  void run_erased(Task task, std::size_t n_chunks, int n_active);
  void work(int worker);
  void take_part(std::uint64_t ticket, int worker);
  void take_own_chunks(std::size_t n_chunks, int worker);
  void park(std::uint64_t last_phase);
  void rest(int worker);
  void wake_parked();
  void stop_workers();
  void mark_seen(int worker);

  // The ticket packs (phase number, fair bit, chunks left). A claim is a compare-and-swap on the whole word, so a
  // worker that comes late can never take a chunk of a phase it has not read: a finished phase has no chunks left.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::uint32_t> n_done_{0};
  std::atomic<void (*)(const void*, std::size_t, int) noexcept> function_{nullptr};
  std::atomic<const void*> body_{nullptr};
  std::atomic<std::uint32_t> n_chunks_{0};
  std::atomic<int> n_active_{1};
  alignas(64) std::atomic<int> n_parked_{0};
  std::mutex park_mutex_;
  std::condition_variable unpark_;
  std::condition_variable end_rest_;  // workers that no phase has used lately
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> workers_seen_{0};
  Claiming claiming_ = Claiming::kDynamic;
  int spin_rounds_;
  std::vector<std::thread> workers_;
};

}  // namespace powerinfer::parallel
