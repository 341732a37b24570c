// What BlockStore tells of itself: its statistics and its conservation laws.
#include <vector>

#include "offload/block_store.h"

namespace cairn {

BlockStoreStats BlockStore::stats() const {
  BlockStoreStats stats = counts_;
  stats.capacity = pool_.capacity();
  stats.free = pool_.free_count();
  stats.filling = stats.capacity - stats.free - hot_count_;
  stats.hot = hot_count_;
  stats.held_hot = held_hot_count_;
  stats.evictable = evictable_count();
  stats.parked = parked_count_;
  stats.block_bytes = layout_.block_bytes();
  return stats;
}

void BlockStore::CheckInvariants() const {
  uint32_t owned_count = 0;
  uint32_t hot_count = 0;
  uint32_t held_hot_count = 0;
  uint32_t parked_count = 0;
  std::vector<bool> is_owned(pool_.capacity(), false);
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i]) continue;
    const BlockMeta& meta = *blocks_[i];
    ++owned_count;
    CHECK(pool_.IsTaken(meta.slot));
    CHECK(!is_owned[meta.slot.value()]);  // one owner a slot
    is_owned[meta.slot.value()] = true;
    if (meta.state == BlockState::kFilling) {
      CHECK(meta.hold_count == 1);
      continue;
    }
    ++hot_count;
    held_hot_count += meta.hold_count > 0;
    const PrefixIndex::Entry* parent = index_.Find(meta.parent);
    CHECK(parent != nullptr);
    const auto follower = parent->followers.find(meta.seal_order);
    CHECK(follower != parent->followers.end() && follower->second == BlockId(i));
    CHECK(meta.first_position == parent->depth * layout_.block_tokens);
    if (meta.tail_tokens.empty()) {
      const PrefixIndex::Entry* entry = index_.Find(meta.key);
      CHECK(entry != nullptr && entry->block == BlockId(i) && entry->parent == meta.parent);
      CHECK(meta.token_count == layout_.block_tokens);
    } else {
      ++parked_count;
      CHECK(meta.hold_count == 0);
      CHECK(meta.token_count == meta.tail_tokens.size());
      CHECK(meta.token_count < layout_.block_tokens);
    }
  }
  CHECK(owned_count + pool_.free_count() == pool_.capacity());
  CHECK(owned_count + free_ids_.size() == blocks_.size());
  CHECK(hot_count == hot_count_ && held_hot_count == held_hot_count_);
  CHECK(parked_count == parked_count_);
  const PrefixIndex::Totals totals = index_.CheckInvariants();
  CHECK(totals.follower_count == hot_count);
  CHECK(totals.full_count == hot_count - parked_count);
}

}  // namespace cairn
