#include "engine/kv_cache.h"

#include <cstring>
#include <limits>

#include "base/check.h"

namespace powerinfer::engine {

namespace {

constexpr auto kBlockPositions = static_cast<int>(backend::kKvBlock);

std::size_t element_bytes(KvType type) { return type == KvType::kF16 ? 2 : 4; }

std::uint64_t block_bytes(const backend::ModelPlan& plan, KvType type) {
  return 2 * plan.attention.kv_width() * backend::kKvBlock * element_bytes(type);
}

int blocks_for(int n_positions) { return (n_positions - 1) / kBlockPositions + 1; }

}  // namespace

std::uint64_t KvCache::bytes(const backend::ModelPlan& plan, KvType type, int n_seqs, int n_ctx) {
  const std::uint64_t per_block = block_bytes(plan, type) * plan.layers.size();
  const std::uint64_t n_blocks = static_cast<std::uint64_t>(blocks_for(n_ctx)) * static_cast<std::uint64_t>(n_seqs);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  return per_block != 0 && n_blocks > kMax / per_block ? kMax : n_blocks * per_block;
}

KvCache::KvCache(const backend::ModelPlan& plan, KvType type, int n_seqs, int n_ctx)
    : n_layers_(plan.layers.size()),
      blocks_per_sequence_(blocks_for(n_ctx)),
      storage_(bytes(plan, type, n_seqs, n_ctx)) {
  const std::size_t n_blocks = static_cast<std::size_t>(blocks_per_sequence_) * static_cast<std::size_t>(n_seqs);
  view_.data = reinterpret_cast<std::uint8_t*>(storage_.data());
  view_.type = type == KvType::kF16 ? DType::kF16 : DType::kF32;
  view_.n_blocks = n_blocks;
  view_.block_bytes = block_bytes(plan, type);
  view_.row_bytes = plan.attention.head_dim * element_bytes(type);
  view_.head_bytes = backend::kKvBlock * view_.row_bytes;
  tables_.assign(n_blocks, -1);
  references_.assign(n_blocks, 0);
  n_past_ = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(n_seqs));
  free_.reserve(n_blocks);
  for (std::size_t block = n_blocks; block-- > 0;) free_.push_back(static_cast<std::int32_t>(block));
}

backend::KvView KvCache::view() { return view_; }

const std::int32_t* KvCache::table(int sequence) const {
  return tables_.data() + static_cast<std::size_t>(sequence) * static_cast<std::size_t>(blocks_per_sequence_);
}

std::int32_t& KvCache::entry(int sequence, int block) {
  return tables_[static_cast<std::size_t>(sequence) * static_cast<std::size_t>(blocks_per_sequence_) +
                 static_cast<std::size_t>(block)];
}

std::int32_t KvCache::take() {
  PI_DCHECK(!free_.empty());  // every sequence can hold n_ctx positions of its own
  const std::int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(block)] = 1;
  return block;
}

void KvCache::release(std::int32_t& block) {
  if (block >= 0 && --references_[static_cast<std::size_t>(block)] == 0) free_.push_back(block);
  block = -1;
}

void KvCache::copy_block(std::int32_t from, std::int32_t to) {
  for (std::size_t layer = 0; layer < n_layers_; ++layer) {
    std::uint8_t* base = view_.data + layer * view_.n_blocks * view_.block_bytes;
    std::memcpy(base + static_cast<std::size_t>(to) * view_.block_bytes,
                base + static_cast<std::size_t>(from) * view_.block_bytes, view_.block_bytes);
  }
}

void KvCache::reserve(int sequence, int n_total) {
  const int past = n_past(sequence);
  if (n_total <= past) return;
  for (int block = past / kBlockPositions; block < blocks_for(n_total); ++block) {
    std::int32_t& held = entry(sequence, block);
    if (held < 0) {
      held = take();
    } else if (references_[static_cast<std::size_t>(held)] > 1) {
      const std::int32_t own = take();
      copy_block(held, own);
      release(held);
      held = own;
    }
  }
}

void KvCache::truncate(int sequence, int n) {
  const int n_kept = n == 0 ? 0 : blocks_for(n);
  for (int block = n_kept; block < blocks_per_sequence_; ++block) release(entry(sequence, block));
  set_n_past(sequence, n);
}

void KvCache::copy(int from, int to) {
  if (from == to) return;
  truncate(to, 0);
  const int past = n_past(from);
  const int n_full = past / kBlockPositions;
  for (int block = 0; block < n_full; ++block) {
    const std::int32_t shared = entry(from, block);
    ++references_[static_cast<std::size_t>(shared)];
    entry(to, block) = shared;
  }
  if (past % kBlockPositions != 0) {
    entry(to, n_full) = take();
    copy_block(entry(from, n_full), entry(to, n_full));
  }
  set_n_past(to, past);
}

}  // namespace powerinfer::engine
