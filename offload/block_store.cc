#include "offload/block_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "offload/block_change.h"

namespace cairn {
namespace {

uint32_t CommonCount(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return static_cast<uint32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

Hold& Hold::operator=(Hold&& other) noexcept {
  if (this != &other) {
    Release();
    store_ = std::exchange(other.store_, nullptr);
    id_ = std::exchange(other.id_, BlockId());
  }
  return *this;
}

Hold Hold::Clone() const {
  CHECK(store_ != nullptr && store_->At(id_).state == BlockState::kSealed);
  return store_->Acquire(id_);
}

void Hold::Release() {
  if (store_ != nullptr) std::exchange(store_, nullptr)->EndHold(std::exchange(id_, BlockId()));
}

const BlockKey& Hold::key() const {
  CHECK(store_ != nullptr && store_->At(id_).state == BlockState::kSealed);
  return *store_->At(id_).entry->key;
}

bool Hold::is_sealed() const {
  CHECK(store_ != nullptr);
  return store_->At(id_).state == BlockState::kSealed;
}

bool Hold::is_ready() const {
  CHECK(store_ != nullptr);
  return store_->IsResident(store_->At(id_));
}

bool Hold::is_loading() const {
  CHECK(store_ != nullptr);
  const BlockMeta& meta = store_->At(id_);
  return meta.load.valid() && !store_->IsResident(meta);
}

Tier Hold::tier() const {
  CHECK(store_ != nullptr);
  return store_->TierOf(store_->At(id_));
}

const std::byte* Hold::address() const {
  CHECK(is_ready());
  return store_->AddressOf(store_->At(id_));
}

std::byte* Hold::writable_address() const {
  CHECK(store_ != nullptr && store_->At(id_).state == BlockState::kFilling);
  return store_->AddressOf(store_->At(id_));
}

const EventRef& Hold::ready() const {
  CHECK(store_ != nullptr);
  return store_->At(id_).ready;
}

CopyRef Hold::arrival() const {
  CHECK(store_ != nullptr);
  const auto move = store_->copies_.find(store_->At(id_).load);
  if (move == store_->copies_.end() || move->second.copy == nullptr) return nullptr;
  return move->second.copy->layer_count() == 0 ? nullptr : move->second.copy;
}

const std::byte* Hold::arrival_address() const {
  CHECK(arrival() != nullptr);
  return store_->device_pool_.Address(store_->copies_.at(store_->At(id_).load).target.slot);
}

// The entries along `tokens`. What an earlier process left on disk of them is there from now on.
std::vector<const PrefixIndex::Entry*> BlockStore::PathOf(const BlockKey& root,
                                                          std::span<const uint32_t> tokens) {
  const size_t block_tokens = layout_.block_tokens;
  BlockKey parent = root;
  for (size_t end = block_tokens; end <= tokens.size() && !found_.empty(); end += block_tokens) {
    const auto own = tokens.subspan(end - block_tokens, block_tokens);
    const BlockKey key = index_.KeyOf(parent, own);
    const auto found = found_.find(key);
    if (found != found_.end()) {
      AdoptRecord(root, tokens.first(end), found->second);
      found_keys_.erase(found->second);
      found_.erase(found);
      if (found_.empty()) {  // the last one: the tables go too
        found_.rehash(0);
        found_keys_.rehash(0);
      }
    }
    parent = key;
  }
  return index_.Walk(root, tokens);
}

// `tokens` end with the block of the record.
void BlockStore::AdoptRecord(const BlockKey& root, std::span<const uint32_t> tokens,
                             RecordId record) {
  const BlockId id = NewId();
  const std::optional<PrefixIndex::Placed> placed = index_.PlaceDeep(root, tokens, id);
  if (!placed || !placed->is_new) {  // it was computed again meanwhile
    free_ids_.push_back(id);
    disk_->Forget(record);
    return;
  }
  BlockMeta& meta = blocks_[id.value()].emplace();
  meta.state = BlockState::kSealed;
  meta.record = record;
  meta.entry = placed->entry;
  meta.first_position = (placed->entry->depth - 1) * layout_.block_tokens;
  meta.token_count = static_cast<uint8_t>(layout_.block_tokens);
  meta.priority = kPriorityDefault;
  meta.seal_order = ++seal_order_;
  meta.last_use = clock_.Now();
  meta.use_order = ++use_order_;
  ++Tally(StandingOf(meta));
  disk_->Adopt(record, id);
}

std::vector<Hold> BlockStore::Match(const BlockKey& root, std::span<const uint32_t> tokens,
                                    uint32_t priority) {
  std::vector<uint32_t> loads(tokens.size() / layout_.block_tokens);
  std::iota(loads.begin(), loads.end(), 0);
  return Match(root, tokens, priority, loads);
}

Hold BlockStore::MatchOne(const BlockKey& root, std::span<const uint32_t> tokens, size_t index,
                          uint32_t priority, uint32_t turn) {
  const std::vector<const PrefixIndex::Entry*> path = PathOf(root, tokens);
  if (index >= path.size() || !path[index]->block.valid()) return Hold();
  const BlockId id = path[index]->block;
  if (IsHereOrComing(id)) {
    ChangeTurn(id, turn, turn);
  } else if (!BeginLoad(id, turn)) {
    return Hold();
  }
  return AcquireForUse(id, priority);
}

// Somebody has asked for the block's tokens.
Hold BlockStore::AcquireForUse(BlockId id, uint32_t priority) {
  BlockMeta& meta = At(id);
  meta.priority = static_cast<uint8_t>(priority);
  if (!IsTail(meta)) idle_watch_.NoteUse(*meta.entry->key, clock_.Now());
  reuse_odds_.NoteReuse(meta.reuse_count++);
  meta.reused_since_spill = true;
  meta.doomed = false;
  return Acquire(id);
}

std::vector<Hold> BlockStore::Match(const BlockKey& root, std::span<const uint32_t> tokens,
                                    uint32_t priority, std::span<const uint32_t> loads,
                                    uint32_t turn, bool by_layer) {
  CHECK(priority <= kPriorityMax);
  const size_t block_count = tokens.size() / layout_.block_tokens;
  const std::vector<const PrefixIndex::Entry*> path = PathOf(root, tokens);
  std::vector<BlockId> ids;
  ids.reserve(path.size());
  for (const PrefixIndex::Entry* entry : path) ids.push_back(entry->block);
  std::vector<Hold> holds(ids.size());
  // What is there first, so that it does not make room for what is not. What is on its way already
  // comes in this turn if that is sooner.
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!IsHereOrComing(ids[i])) continue;
    ChangeTurn(ids[i], turn, turn);
    holds[i] = AcquireForUse(ids[i], priority);
  }
  by_layer = by_layer && may_arrive_by_layer() && turn != kTurnAhead;
  for (const uint32_t i : loads) {
    if (i >= ids.size() || !ids[i].valid() || holds[i]) continue;
    if (BeginLoad(ids[i], turn, by_layer)) holds[i] = AcquireForUse(ids[i], priority);
  }
  if (by_layer) BeginByLayer();
  const auto found_count = static_cast<uint64_t>(
      std::ranges::count_if(holds, [](const Hold& one) { return static_cast<bool>(one); }));
  while (!holds.empty() && !holds.back()) holds.pop_back();
  counts_.hits += found_count;
  counts_.misses += block_count - found_count;
  return holds;
}

BlockNeed BlockStore::NeedOf(const BlockKey& root, std::span<const uint32_t> tokens,
                             uint32_t block_count) {
  CHECK(block_count >= tokens.size() / layout_.block_tokens);
  BlockNeed need{.missing = block_count,
                 .available = free_count() + evictable_count(),
                 .lossless = free_count() + lossless_count()};
  for (const PrefixIndex::Entry* entry : PathOf(root, tokens)) {
    if (!entry->block.valid()) continue;
    const BlockMeta& meta = At(entry->block);
    const Standing standing = StandingOf(meta);
    if (standing == Standing::kCold && !meta.load.valid()) continue;
    --need.missing;
    need.available -= IsEvictable(standing);
    need.lossless -= IsLossless(standing);
  }
  return need;
}

// `of` each full block of `tokens`; kAbsent of what is not known.
template <class Where>
std::vector<Where> BlockStore::Along(const BlockKey& root, std::span<const uint32_t> tokens,
                                     Where (BlockStore::*of)(const BlockMeta&) const) {
  std::vector<Where> found(tokens.size() / layout_.block_tokens, Where::kAbsent);
  const std::vector<const PrefixIndex::Entry*> path = PathOf(root, tokens);
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i]->block.valid()) found[i] = (this->*of)(At(path[i]->block));
  }
  return found;
}

std::vector<Tier> BlockStore::Locate(const BlockKey& root, std::span<const uint32_t> tokens) {
  return Along(root, tokens, &BlockStore::TierOf);
}

std::vector<Origin> BlockStore::Survey(const BlockKey& root, std::span<const uint32_t> tokens) {
  return Along(root, tokens, &BlockStore::OriginOf);
}

bool BlockStore::IsHereOrComing(BlockId id) const {
  return id.valid() && (IsResident(At(id)) || At(id).load.valid());
}

Origin BlockStore::OriginOf(const BlockMeta& meta) const {
  if (IsResident(meta)) return Origin::kResident;
  if (!meta.load.valid() && !CanLoad(meta)) return Origin::kAbsent;
  return meta.host.valid() ? Origin::kHost : Origin::kDisk;
}

std::optional<PartialBlock> BlockStore::CopyPrefix(const BlockKey& parent,
                                                   std::span<const uint32_t> tokens,
                                                   Stream& stream) {
  const Common source = LongestCommon(parent, tokens);
  if (source.token_count == 0) return std::nullopt;
  const Hold kept = Acquire(source.block);  // so that it does not make room for its own copy
  Result<std::vector<Hold>> fresh = Reserve(1);
  if (!fresh.ok()) return std::nullopt;
  Hold copy = std::move(fresh->front());
  stream.Wait(kept.ready());
  stream.Copy(copy.writable_address(), kept.address(), layout_.block_bytes());
  const EventRef copied = stream.Record();
  if (stream.failed()) {
    (void)stream.Synchronize();  // nothing of it runs any more; it can be computed instead
    return std::nullopt;
  }
  prefix_copy_ = At(copy.id()).ready = copied;
  ++At(source.block).reuse_count;
  ++counts_.prefix_copies;
  return PartialBlock{std::move(copy), source.token_count};
}

Result<std::vector<Hold>> BlockStore::Reserve(uint32_t count) {
  if (count > free_count()) {
    const uint32_t need = count - free_count();
    if (need > evictable_count()) {
      return ResourceExhausted("need " + std::to_string(count) +
                               " blocks: " + std::to_string(free_count()) + " free, " +
                               std::to_string(evictable_count()) + " evictable, capacity " +
                               std::to_string(stats().capacity));
    }
    MakeRoom(need);
  }
  // The later ones, which are read and written longest, go on the device.
  const uint32_t on_device = std::min(count, device_pool_.free_count());
  std::vector<Hold> holds;
  holds.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    holds.push_back(NewFilling(TakeSlot(i < count - on_device ? Tier::kHost : Tier::kDevice)));
  }
  return holds;
}

Hold BlockStore::Seal(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
                      uint32_t priority) {
  BlockMeta& meta = At(filling.id());
  CHECK(meta.state == BlockState::kFilling && tokens.size() == layout_.block_tokens);
  const PrefixIndex::Placed placed = index_.Place(parent, tokens, filling.id());
  counts_.collisions += placed.is_collision;
  if (!placed.is_new) return SealAgain(std::move(filling), placed.entry->block, priority);
  meta.entry = placed.entry;
  meta.first_position = (placed.entry->depth - 1) * layout_.block_tokens;
  // What follows it is there, so it was there before, and is asked for again.
  const bool comes_back = placed.entry->has_descendants();
  meta.reuse_count = comes_back;
  if (comes_back) {
    reuse_odds_.NoteReuse(1);
  } else {
    reuse_odds_.NoteComputed();
  }
  BecomeHot(meta, layout_.block_tokens, priority);
  idle_watch_.NoteUse(*meta.entry->key, clock_.Now());
  DropCoveredTails(parent, tokens);
  return filling;
}

// An equal block is there. Where it is not resident, or on its way, this one's slot makes it so.
Hold BlockStore::SealAgain(Hold filling, BlockId equal_id, uint32_t priority) {
  Hold equal = Acquire(equal_id);
  BlockMeta& meta = At(filling.id());
  BlockMeta& equal_meta = At(equal_id);
  idle_watch_.NoteUse(*equal_meta.entry->key, clock_.Now());
  if (!IsResident(equal_meta)) {
    CancelLoad(equal_id);
    const Change change(*this, meta);
    const Change equal_change(*this, equal_meta);
    const Tier tier = meta.device.valid() ? Tier::kDevice : Tier::kHost;
    SetSlot(equal_id, {tier, std::exchange(SlotIn(meta, tier), SlotId())});
  } else if (config_.verify_duplicates) {
    VerifyDuplicate(meta, equal_meta);
  }
  equal_meta.priority = std::max(equal_meta.priority, static_cast<uint8_t>(priority));
  ++equal_meta.reuse_count;
  ++counts_.duplicate_seals;
  filling.Release();
  return equal;
}

void BlockStore::Park(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
                      uint32_t priority) {
  const BlockId id = filling.id();
  BlockMeta& meta = At(id);
  CHECK(meta.state == BlockState::kFilling && !tokens.empty());
  CHECK(tokens.size() < layout_.block_tokens);
  if (LongestCommon(parent, tokens).token_count == tokens.size()) return;  // a copy of that will do
  meta.entry = index_.PlaceTail(parent, id);
  tails_.emplace(id, std::vector<uint32_t>(tokens.begin(), tokens.end()));
  meta.first_position = meta.entry->depth * layout_.block_tokens;
  BecomeHot(meta, tokens.size(), priority);
  DropCoveredTails(parent, tokens);
}

uint32_t BlockStore::DropUnheld(const BlockKey& root, std::span<const uint32_t> tokens,
                                uint32_t first) {
  uint32_t count = 0;
  for (const BlockId id : BlocksOf(root, tokens, first)) count += Drop(id);
  return count;
}

uint32_t BlockStore::DropOwn(const BlockKey& root, std::span<const uint32_t> tokens,
                             uint32_t first) {
  std::vector<BlockId> own = BlocksOf(root, tokens, first);
  uint32_t count = 0;
  for (; !own.empty(); own.pop_back()) {
    const BlockMeta& meta = At(own.back());
    if (!IsTail(meta) && meta.entry->has_descendants()) break;
    count += Drop(own.back());
  }
  return count;
}

// The blocks of `tokens` from block `first` on, and the parked tails that begin as the rest does.
std::vector<BlockId> BlockStore::BlocksOf(const BlockKey& root, std::span<const uint32_t> tokens,
                                          uint32_t first) {
  const size_t full_count = tokens.size() / layout_.block_tokens;
  const std::vector<const PrefixIndex::Entry*> path = PathOf(root, tokens);
  std::vector<BlockId> blocks;
  for (size_t i = first; i < path.size(); ++i) {
    if (path[i]->block.valid()) blocks.push_back(path[i]->block);
  }
  const PrefixIndex::Entry* last = path.empty() ? index_.Find(root) : path.back();
  if (path.size() == full_count && last != nullptr) {
    const auto rest = tokens.subspan(full_count * layout_.block_tokens);
    BlockId id = last->latest_follower;
    for (; id.valid(); id = index_.FollowerBefore(id)) {
      const BlockMeta& meta = At(id);
      if (IsTail(meta) && CommonCount(TokensOf(id), rest) == meta.token_count) blocks.push_back(id);
    }
  }
  return blocks;
}

void BlockStore::BecomeHot(BlockMeta& meta, size_t token_count, uint32_t priority) {
  CHECK(priority <= kPriorityMax);
  const Change change(*this, meta);
  meta.state = BlockState::kSealed;
  meta.token_count = static_cast<uint8_t>(token_count);
  meta.priority = static_cast<uint8_t>(priority);
  meta.seal_order = ++seal_order_;
  ++counts_.seals;
}

// The latest kSiblingScanMax sealed blocks that follow `parent`, latest first.
std::vector<BlockId> BlockStore::LatestFollowers(const BlockKey& parent) const {
  std::vector<BlockId> latest;
  const PrefixIndex::Entry* entry = index_.Find(parent);
  if (entry == nullptr) return latest;
  BlockId next = entry->latest_follower;
  for (; next.valid() && latest.size() < kSiblingScanMax; next = index_.FollowerBefore(next)) {
    latest.push_back(next);
  }
  return latest;
}

// Of these, the resident one that agrees longest with `tokens`; the latest among equals.
// token_count is 0 when none agrees in the first token.
BlockStore::Common BlockStore::LongestCommon(const BlockKey& parent,
                                             std::span<const uint32_t> tokens) const {
  Common best;
  for (const BlockId id : LatestFollowers(parent)) {
    if (!IsResident(At(id))) continue;
    const uint32_t common_count = CommonCount(TokensOf(id), tokens);
    if (common_count > best.token_count) best = {id, common_count};
  }
  return best;
}

// Of these, drops the parked tails that are prefixes of a block which was just sealed.
void BlockStore::DropCoveredTails(const BlockKey& parent, std::span<const uint32_t> tokens) {
  for (const BlockId id : LatestFollowers(parent)) {
    const BlockMeta& meta = At(id);
    if (!IsTail(meta) || meta.hold_count > 0) continue;
    if (CommonCount(TokensOf(id), tokens) == meta.token_count) Drop(id);
  }
}

void BlockStore::VerifyDuplicate(const BlockMeta& one, const BlockMeta& other) {
  const size_t size_bytes = layout_.block_bytes();
  if (host_addressable_) {
    CHECK(std::memcmp(AddressOf(one), AddressOf(other), size_bytes) == 0);
    return;
  }
  std::vector<std::byte> bytes(size_bytes), others(size_bytes);
  const bool copied =
      copy_queue_->CopyToHostNow(bytes.data(), AddressOf(one), size_bytes, prefix_copy_).ok() &&
      copy_queue_->CopyToHostNow(others.data(), AddressOf(other), size_bytes, prefix_copy_).ok();
  if (copied) CHECK(bytes == others);
}

}  // namespace cairn
