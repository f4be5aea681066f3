// Every chunk exactly once, whatever the number of threads, their timing or what other pools do.
#include "test.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "parallel/thread_pool.h"

using powerinfer::parallel::Claiming;
using powerinfer::parallel::ThreadPool;

namespace {

/// Runs phases of changing sizes; returns false if any chunk ran not exactly once.
bool phases_are_exact(ThreadPool& pool, int n_phases, std::size_t max_chunks) {
  const auto counts = std::make_unique<std::atomic<int>[]>(max_chunks);
  for (int phase = 0; phase < n_phases; ++phase) {
    const std::size_t n_chunks = static_cast<std::size_t>(phase) % max_chunks + 1;
    for (std::size_t i = 0; i < n_chunks; ++i) counts[i].store(0, std::memory_order_relaxed);
    const int n_active = phase % pool.n_threads() + 1;
    pool.run(n_chunks, n_active, [&](std::size_t chunk, int) noexcept { counts[chunk].fetch_add(1); });
    for (std::size_t i = 0; i < n_chunks; ++i) {
      if (counts[i].load(std::memory_order_relaxed) != 1) return false;
    }
  }
  return true;
}

}  // namespace

TEST(every_chunk_runs_once) {
  for (const int n_threads : {1, 2, 3, 8, 40}) {
    ThreadPool pool(n_threads);
    CHECK_EQ(pool.n_threads(), n_threads);
    CHECK(phases_are_exact(pool, 2000, 50));
  }
}

TEST(fair_claiming_uses_every_worker) {
  ThreadPool pool(5);
  pool.set_claiming(Claiming::kFair);
  CHECK(phases_are_exact(pool, 500, 20));
  CHECK_EQ(pool.workers_seen(), 0b11111U);
  pool.clear_workers_seen();
  std::atomic<int> wrong{0};
  pool.run(10, 5, [&](std::size_t chunk, int worker) noexcept {
    if (static_cast<int>(chunk % 5) != worker) ++wrong;
  });
  CHECK_EQ(wrong.load(), 0);
}

TEST(workers_beyond_the_active_ones_rest) {
  ThreadPool pool(4);
  std::atomic<int> most{0};
  for (int phase = 0; phase < 200; ++phase) {
    pool.run(64, 2, [&](std::size_t, int worker) noexcept {
      int seen = most.load();
      while (worker > seen && !most.compare_exchange_weak(seen, worker)) {
      }
    });
  }
  CHECK(most.load() <= 1);
}

TEST(parked_workers_wake_up) {
  ThreadPool pool(3);
  pool.set_claiming(Claiming::kFair);  // needs every worker: a lost wake-up would hang here
  for (int phase = 0; phase < 20; ++phase) {
    std::this_thread::sleep_for(std::chrono::milliseconds(phase % 5));
    CHECK(phases_are_exact(pool, 3, 7));
  }
}

TEST(results_of_a_phase_are_visible_after_it) {
  ThreadPool pool(4);
  std::vector<int> values(97);
  for (int phase = 1; phase < 500; ++phase) {
    pool.run(values.size(), 4, [&](std::size_t chunk, int) noexcept { values[chunk] = phase; });
    for (const int value : values) CHECK(value == phase);
  }
}

TEST(pools_do_not_disturb_each_other) {
  std::atomic<int> n_wrong{0};
  std::thread other([&] {
    ThreadPool pool(3);
    if (!phases_are_exact(pool, 1000, 30)) ++n_wrong;
  });
  ThreadPool pool(3);
  CHECK(phases_are_exact(pool, 1000, 30));
  other.join();
  CHECK_EQ(n_wrong.load(), 0);
}

TEST_MAIN()
