// How BlockStore makes room: whom it evicts, when, and what a block leaves behind.
#include <algorithm>
#include <optional>
#include <vector>

#include "offload/block_store.h"
#include "offload/eviction.h"

namespace cairn {
namespace {

// One ranking serves this share of the pool's evictions: a full ranking is O(blocks), and ranks
// change slowly. The ranked blocks are evicted one by one, as slots are needed, not all at once.
constexpr uint32_t kRankedShare = 64;

}  // namespace

// Evicts `need` blocks; there are so many evictable ones.
void BlockStore::MakeRoom(uint32_t need) {
  CHECK(need <= evictable_count());
  while (need > 0) {
    if (victims_.empty()) RankVictims(need);
    const Victim victim = victims_.back();
    victims_.pop_back();
    const std::optional<BlockMeta>& meta = blocks_[victim.block.value()];
    const bool still_idle = meta && meta->use_order == victim.use_order && meta->hold_count == 0;
    if (!still_idle) continue;
    Evict(victim.block);
    --need;
  }
}

void BlockStore::RankVictims(uint32_t need) {
  const Clock::Monotonic now = clock_.Now();
  std::vector<EvictionCandidate> view;
  view.reserve(evictable_count());
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i] || !IsEvictable(BlockId(i))) continue;
    const BlockMeta& meta = *blocks_[i];
    view.push_back({BlockId(i), meta.first_position, meta.token_count, meta.priority, meta.reused,
                    now - meta.last_use, meta.use_order});
  }
  const uint32_t count = std::max(need, pool_.capacity() / kRankedShare);
  for (const BlockId id : PickVictims(view, count)) victims_.push_back({id, At(id).use_order});
  std::ranges::reverse(victims_);
}

void BlockStore::Evict(BlockId id) {
  ++counts_.evictions;
  Free(id);
}

void BlockStore::Drop(BlockId id) {
  ++counts_.drops;
  Free(id);
}

// Nobody holds the block: its slot, its place in the index and its id are free again.
void BlockStore::Free(BlockId id) {
  BlockMeta& meta = At(id);
  CHECK(meta.hold_count == 0);
  if (meta.state == BlockState::kHot) {
    if (meta.tail_tokens.empty()) {
      index_.Remove(meta.key, meta.seal_order);
    } else {
      index_.RemoveTail(meta.parent, meta.seal_order);
      --parked_count_;
    }
    --hot_count_;
  }
  pool_.Give(meta.slot);
  blocks_[id.value()].reset();
  free_ids_.push_back(id);
}

uint32_t BlockStore::Clear() {
  const uint32_t count = evictable_count();
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i] && IsEvictable(BlockId(i))) Drop(BlockId(i));
  }
  return count;
}

}  // namespace cairn
