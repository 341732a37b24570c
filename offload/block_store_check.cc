// What BlockStore tells of itself: its statistics and its conservation laws.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "offload/block_store.h"

namespace cairn {

BlockStoreStats BlockStore::stats() const {
  BlockStoreStats stats = counts_;
  stats.device_capacity = device_pool_.capacity();
  stats.device_used = device_pool_.capacity() - device_pool_.free_count();
  if (host_pool_) {
    stats.host_capacity = host_pool_->capacity();
    stats.host_used = host_pool_->capacity() - host_pool_->free_count();
  }
  stats.capacity = stats.device_capacity + (host_in_place_ ? stats.host_capacity : 0);
  stats.free = free_count();
  stats.filling = Count(Standing::kFilling);
  stats.held_hot = Count(Standing::kHeld);
  stats.busy = Count(Standing::kBusy);
  stats.clean = Count(Standing::kClean);
  stats.dirty = Count(Standing::kCheap) + Count(Standing::kDirty);
  stats.cold = Count(Standing::kCold);
  stats.evictable = evictable_count();
  stats.hot = stats.held_hot + stats.busy + stats.evictable;
  stats.in_flight = in_flight_count_;
  stats.parked = static_cast<uint32_t>(tails_.size());
  stats.block_bytes = layout_.block_bytes();
  return stats;
}

LoadFlow BlockStore::host_flow() const {
  LoadFlow flow = host_meter_.flow();
  if (copy_queue_ != nullptr) {
    flow.block_s = std::max(flow.block_s, copy_queue_->LimitedSeconds(layout_.block_bytes()));
  }
  return flow;
}

std::optional<DiskTierStats> BlockStore::disk_stats() const {
  if (!disk_) return std::nullopt;
  return disk_->stats();
}

void BlockStore::CheckInvariants() const {
  std::array<uint32_t, static_cast<size_t>(Standing::kCount)> tally{};
  std::array<std::vector<uint32_t>, 2> owned;  // slots, by tier
  uint32_t parked_count = 0;
  uint32_t sealed_count = 0;
  uint32_t living_count = 0;
  size_t record_count = found_.size();
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i]) continue;
    const BlockMeta& meta = *blocks_[i];
    ++living_count;
    ++tally[static_cast<size_t>(StandingOf(meta))];
    if (meta.device.valid()) {
      owned[0].push_back(meta.device.value());
      CHECK(device_pool_.owners()[meta.device.value()] == BlockId(i));
    }
    if (meta.host.valid()) {
      owned[1].push_back(meta.host.value());
      CHECK(host_pool_->owners()[meta.host.value()] == BlockId(i));
    }
    record_count += meta.record.valid();
    CheckBlock(BlockId(i), meta);
    sealed_count += meta.state == BlockState::kSealed;
    parked_count += IsTail(meta);
  }
  for (const auto* moves : {&moves_, &copies_}) {
    for (const auto& [id, move] : *moves) {
      if (!move.target.slot.valid()) continue;
      if (move.waits) CHECK(At(move.block).load == id && At(move.block).host.valid());
      owned[move.target.tier == Tier::kHost].push_back(move.target.slot.value());
    }
  }
  // One owner a slot, and every taken slot has one.
  CHECK(owned[0].size() + device_pool_.free_count() == device_pool_.capacity());
  CHECK(owned[1].size() + (host_pool_ ? host_pool_->free_count() : 0) ==
        (host_pool_ ? host_pool_->capacity() : 0));
  for (std::vector<uint32_t>& slots : owned) {
    std::ranges::sort(slots);
    CHECK(std::ranges::adjacent_find(slots) == slots.end());
  }
  CHECK(tally == tally_);
  CHECK(living_count + free_ids_.size() == blocks_.size());
  CHECK(parked_count == tails_.size());
  CHECK(found_.size() == found_keys_.size());
  if (disk_) CHECK(disk_->stats().records == record_count);
  if (staging_ != nullptr) staging_->CheckInvariants();
  const BlockStoreStats gauges = stats();
  CHECK(gauges.free + gauges.filling + gauges.hot + gauges.in_flight == gauges.capacity);
  const PrefixIndex::Totals totals = index_.CheckInvariants();
  CHECK(totals.follower_count == sealed_count);
  CHECK(totals.full_count == sealed_count - parked_count);
}

void BlockStore::CheckBlock(BlockId id, const BlockMeta& meta) const {
  if (meta.state == BlockState::kFilling) {
    CHECK(meta.hold_count == 1 && meta.device.valid() != meta.host.valid());
    CHECK(!meta.record.valid() && !meta.load.valid() && !meta.store.valid());
    return;
  }
  CHECK(meta.hold_count > 0 || meta.load.valid() || meta.store.valid() || !IsAbsent(meta));
  if (host_in_place_) CHECK(!meta.device.valid() || !meta.host.valid());
  if (meta.load.valid()) CHECK(moves_.contains(meta.load) || copies_.contains(meta.load));
  if (meta.store.valid()) {
    CHECK(moves_.contains(meta.store) || copies_.contains(meta.store));
    CHECK(meta.device.valid() || meta.host.valid());
  }
  // It is among those that follow its parent, in the order in which they were sealed.
  CHECK(meta.entry != nullptr && index_.Find(*meta.entry->key) == meta.entry);
  const PrefixIndex::Entry* const parent = ParentOf(meta);
  CHECK(meta.first_position == parent->depth * layout_.block_tokens);
  const BlockId older = index_.FollowerBefore(id);
  if (older.valid()) {
    CHECK(ParentOf(At(older)) == parent && At(older).seal_order < meta.seal_order);
  }
  const BlockMeta& latest = At(parent->latest_follower);
  CHECK(ParentOf(latest) == parent && latest.seal_order >= meta.seal_order);
  if (IsTail(meta)) {
    CHECK(meta.hold_count == 0 && !meta.record.valid());
    CHECK(tails_.at(id).size() == meta.token_count);
  } else {
    CHECK(meta.entry->block == id && meta.token_count == layout_.block_tokens);
  }
}

}  // namespace cairn
