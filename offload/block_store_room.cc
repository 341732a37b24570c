// Slots: who has them, who must give them up, and what a block leaves behind.
#include <algorithm>
#include <optional>
#include <vector>

#include "offload/block_change.h"
#include "offload/block_store.h"
#include "offload/eviction.h"

namespace cairn {
BlockMeta& BlockStore::At(BlockId id) {
  CHECK(id.value() < blocks_.size() && blocks_[id.value()]);
  return *blocks_[id.value()];
}

const BlockMeta& BlockStore::At(BlockId id) const {
  CHECK(id.value() < blocks_.size() && blocks_[id.value()]);
  return *blocks_[id.value()];
}

uint32_t BlockStore::free_count() const {
  return device_pool_.free_count() + (host_in_place_ && host_pool_ ? host_pool_->free_count() : 0);
}

bool BlockStore::IsResident(const BlockMeta& meta) const {
  return meta.device.valid() || (host_in_place_ && meta.host.valid());
}

bool BlockStore::IsAbsent(const BlockMeta& meta) const {
  return !meta.device.valid() && !meta.host.valid() && !meta.record.valid();
}

bool BlockStore::HasLowerCopy(const BlockMeta& meta) const {
  return meta.record.valid() || (!host_in_place_ && meta.host.valid());
}

Tier BlockStore::TierOf(const BlockMeta& meta) const {
  if (meta.device.valid()) return Tier::kDevice;
  if (meta.host.valid()) return Tier::kHost;
  return meta.record.valid() ? Tier::kDisk : Tier::kAbsent;
}

BlockStore::Standing BlockStore::StandingOf(const BlockMeta& meta) const {
  if (meta.state == BlockState::kFilling) return Standing::kFilling;
  if (!IsResident(meta)) return Standing::kCold;
  if (meta.hold_count > 0) return Standing::kHeld;
  if (meta.store.valid()) return Standing::kBusy;
  // A tail is computed again in a pass that is due anyway.
  if (IsTail(meta) || HasLowerCopy(meta)) return Standing::kClean;
  const bool is_cheap = meta.first_position < first_worth_writing_ && !can_demote();
  return is_cheap ? Standing::kCheap : Standing::kDirty;
}

std::byte* BlockStore::AddressOf(const BlockMeta& meta) const {
  return meta.device.valid() ? device_pool_.Address(meta.device) : host_pool_->Address(meta.host);
}

std::span<const uint32_t> BlockStore::TokensOf(BlockId id) const {
  const BlockMeta& meta = At(id);
  if (IsTail(meta)) return tails_.at(id);
  return index_.TokensOf(*meta.entry);
}

BlockIdentity BlockStore::IdentityOf(const BlockMeta& meta) const {
  CHECK(!IsTail(meta));
  const PrefixIndex::Entry& entry = *meta.entry;
  const std::span<const uint32_t> tokens = index_.TokensOf(entry);
  return {*entry.key, *entry.parent->key, meta.first_position, {tokens.begin(), tokens.end()}};
}

// A free slot where blocks are resident; there is one.
BlockStore::Place BlockStore::TakeSlot(Tier first_choice) {
  const bool host_has_room = host_in_place_ && host_pool_ && host_pool_->free_count() > 0;
  const bool on_host =
      host_has_room && (first_choice == Tier::kHost || device_pool_.free_count() == 0);
  const Tier tier = on_host ? Tier::kHost : Tier::kDevice;
  return {tier, PoolOf(tier).Take()};
}

// The block has a copy there from now on.
void BlockStore::SetSlot(BlockId id, const Place& place) {
  SlotIn(At(id), place.tier) = place.slot;
  PoolOf(place.tier).SetOwner(place.slot, id);
}

void BlockStore::GiveSlot(const Place& place) { PoolOf(place.tier).Give(place.slot); }

BlockId BlockStore::NewId() {
  if (free_ids_.empty()) {
    blocks_.emplace_back();
    return BlockId(static_cast<uint32_t>(blocks_.size() - 1));
  }
  const BlockId id = free_ids_.back();
  free_ids_.pop_back();
  return id;
}

Hold BlockStore::NewFilling(const Place& place) {
  const BlockId id = NewId();
  blocks_[id.value()].emplace();
  SetSlot(id, place);
  ++Tally(Standing::kFilling);
  return Acquire(id);
}

Hold BlockStore::Acquire(BlockId id) {
  BlockMeta& meta = At(id);
  const Change change(*this, meta);
  ++meta.hold_count;
  return Hold(this, id);
}

void BlockStore::EndHold(BlockId id) {
  BlockMeta& meta = At(id);
  CHECK(meta.hold_count > 0);
  {
    const Change change(*this, meta);
    --meta.hold_count;
  }
  if (meta.hold_count > 0) return;
  if (meta.state == BlockState::kFilling) return Free(id);
  meta.last_use = clock_.Now();
  meta.use_order = ++use_order_;
  if (!IsTail(meta)) idle_watch_.NoteIdle(*meta.entry->key, meta.reuse_count, meta.last_use);
  CancelLoad(id);
  FreeIfGone(id);
}

// The block leaves the slot where it is resident.
void BlockStore::Evict(BlockId id) {
  BlockMeta& meta = At(id);
  CHECK(IsEvictable(StandingOf(meta)));
  ++counts_.evictions;
  {
    const Change change(*this, meta);
    const Tier tier = meta.device.valid() ? Tier::kDevice : Tier::kHost;
    counts_.host_evictions += tier == Tier::kHost;
    PoolOf(tier).Give(std::exchange(SlotIn(meta, tier), SlotId()));
  }
  counts_.losses += IsAbsent(meta);
  FreeIfGone(id);
}

// The block leaves every slot; a record stays. A copy to the device that has begun reads one of the
// slots: then the block stays, since somebody has just asked for it.
void BlockStore::EmptyMemory(BlockId id) {
  BlockMeta& meta = At(id);
  CHECK(!meta.store.valid() && meta.hold_count == 0);
  CancelLoad(id);
  if (copies_.contains(meta.load)) return;
  {
    const Change change(*this, meta);
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      SlotId& slot = SlotIn(meta, tier);
      if (slot.valid()) PoolOf(tier).Give(std::exchange(slot, SlotId()));
    }
  }
  FreeIfGone(id);
}

// Every copy goes, now or when the moves that use one are over. False when somebody holds it.
bool BlockStore::Drop(BlockId id) {
  BlockMeta& meta = At(id);
  if (meta.hold_count > 0) return false;
  ++counts_.drops;
  CancelStore(id);
  CancelLoad(id);
  meta.doomed = meta.store.valid() || meta.load.valid();
  if (meta.doomed) return true;
  if (meta.record.valid()) {
    disk_->Forget(meta.record);
    const Change change(*this, meta);
    meta.record = RecordId();
  }
  EmptyMemory(id);
  return true;
}

// Frees a sealed block of which nothing is left, and that nobody waits for.
void BlockStore::FreeIfGone(BlockId id) {
  const BlockMeta& meta = At(id);
  const bool in_use = meta.hold_count > 0 || meta.load.valid() || meta.store.valid();
  if (!in_use && IsAbsent(meta)) Free(id);
}

// Nobody holds the block, and it has no record: its slot, its place in the index and its id are
// free again.
void BlockStore::Free(BlockId id) {
  BlockMeta& meta = At(id);
  CHECK(meta.hold_count == 0 && !meta.record.valid());
  CHECK(!meta.load.valid() && !meta.store.valid());
  --Tally(StandingOf(meta));
  if (meta.state == BlockState::kSealed) {
    if (IsTail(meta)) {
      index_.RemoveTail(*meta.entry->key, id);
      tails_.erase(id);
    } else {
      index_.Remove(*meta.entry->key);
    }
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    if (SlotIn(meta, tier).valid()) PoolOf(tier).Give(SlotIn(meta, tier));
  }
  blocks_[id.value()].reset();
  free_ids_.push_back(id);
}

uint32_t BlockStore::Clear(Tier tier) {
  uint32_t count = 0;
  if (tier == Tier::kAbsent || tier == Tier::kDisk) {
    for (const auto& [record, key] : found_keys_) disk_->Forget(record);
    found_keys_.clear();
    found_.clear();
  }
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i] || blocks_[i]->state == BlockState::kFilling) continue;
    if (tier == Tier::kAbsent) {
      count += Drop(BlockId(i));
    } else {
      count += DropCopy(BlockId(i), tier);
    }
  }
  return count;
}

// Drops the copy in one tier, if there is one and nothing uses it.
bool BlockStore::DropCopy(BlockId id, Tier tier) {
  BlockMeta& meta = At(id);
  if (tier == Tier::kDisk) {
    if (!meta.record.valid() || meta.load.valid()) return false;
    ForgetRecord(id);
    return true;
  }
  const bool is_used = meta.hold_count > 0 || meta.store.valid() || meta.load.valid();
  if (!SlotIn(meta, tier).valid() || is_used) return false;
  {
    const Change change(*this, meta);
    PoolOf(tier).Give(std::exchange(SlotIn(meta, tier), SlotId()));
  }
  ++counts_.drops;
  FreeIfGone(id);
  return true;
}

}  // namespace cairn
