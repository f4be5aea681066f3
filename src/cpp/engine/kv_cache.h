// The key/value cache: blocks of 256 positions, handed to sequences by tables; full blocks can be shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/aligned_buffer.h"
#include "powerinfer/context.h"

namespace powerinfer::engine {

class KvCache {
 public:
  /// Room for n_seqs sequences of n_ctx positions. Throws OutOfMemoryError.
  KvCache(const backend::ModelPlan& plan, KvType type, int n_seqs, int n_ctx);

  /// Bytes the constructor allocates; saturates instead of overflowing.
  static std::uint64_t bytes(const backend::ModelPlan& plan, KvType type, int n_seqs, int n_ctx);

  backend::KvView view();
  /// May be read from any thread (a progress display); everything else belongs to the context's user.
  int n_past(int sequence) const { return n_past_[static_cast<std::size_t>(sequence)].load(std::memory_order_relaxed); }
  /// [ceil(n_ctx / 256)] block ids; entries past the reserved length are -1.
  const std::int32_t* table(int sequence) const;

  /// Makes positions n_past .. n_total-1 of the sequence writable: takes blocks, and copies a block that is shared.
  /// Always succeeds for n_total <= n_ctx.
  void reserve(int sequence, int n_total);
  void advance(int sequence) { set_n_past(sequence, n_past(sequence) + 1); }
  void truncate(int sequence, int n);
  /// `to` becomes a copy: full blocks are shared, the last one is copied.
  void copy(int from, int to);

 private:
  void set_n_past(int sequence, int n) {
    n_past_[static_cast<std::size_t>(sequence)].store(n, std::memory_order_relaxed);
  }
  std::int32_t& entry(int sequence, int block);
  std::int32_t take();
  void release(std::int32_t& block);
  void copy_block(std::int32_t from, std::int32_t to);

  std::size_t n_layers_;
  int blocks_per_sequence_;
  backend::KvView view_;
  base::AlignedBuffer storage_;
  std::vector<std::int32_t> tables_;  // [n_seqs, blocks_per_sequence]
  std::vector<std::int32_t> free_;
  std::vector<std::int32_t> references_;        // [n_blocks]
  std::unique_ptr<std::atomic<int>[]> n_past_;  // [n_seqs]
};

}  // namespace powerinfer::engine
