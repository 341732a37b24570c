#include "offload/block_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace cairn {
namespace {

uint32_t CommonCount(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return static_cast<uint32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

Status OffloadConfig::Validate() const {
  if (device_blocks_max == 0) return InvalidArgument("device_blocks_max is 0");
  return Status();
}

Hold& Hold::operator=(Hold&& other) noexcept {
  if (this != &other) {
    Release();
    store_ = std::exchange(other.store_, nullptr);
    id_ = std::exchange(other.id_, BlockId());
  }
  return *this;
}

Hold Hold::Clone() const {
  CHECK(store_ != nullptr && store_->At(id_).state == BlockState::kHot);
  return store_->Acquire(id_);
}

void Hold::Release() {
  if (store_ != nullptr) std::exchange(store_, nullptr)->EndHold(std::exchange(id_, BlockId()));
}

const BlockKey& Hold::key() const {
  CHECK(store_ != nullptr && store_->At(id_).state == BlockState::kHot);
  return store_->At(id_).key;
}

const std::byte* Hold::address() const {
  CHECK(store_ != nullptr);
  return store_->pool_.Address(store_->At(id_).slot);
}

std::byte* Hold::writable_address() const {
  CHECK(store_ != nullptr && store_->At(id_).state == BlockState::kFilling);
  return store_->pool_.Address(store_->At(id_).slot);
}

const EventRef& Hold::ready() const {
  CHECK(store_ != nullptr);
  return store_->At(id_).ready;
}

Result<std::unique_ptr<BlockStore>> BlockStore::Create(const OffloadConfig& config,
                                                       const KvLayout& layout, Device& device,
                                                       const Clock& clock,
                                                       ChildKeyFunction child_key) {
  RETURN_IF_ERROR(config.Validate());
  CHECK(layout.block_bytes() > 0 && layout.block_tokens <= kBlockTokensMax);
  const size_t stride_bytes = SlotPool::StrideBytes(layout.block_bytes());
  if (config.device_blocks_max > std::numeric_limits<size_t>::max() / stride_bytes) {
    return ResourceExhausted("device_blocks_max blocks are more than the address space");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                   device.Allocate(config.device_blocks_max * stride_bytes));
  return std::unique_ptr<BlockStore>(
      new BlockStore(config, layout, clock, std::move(buffer), child_key));
}

BlockStore::BlockStore(const OffloadConfig& config, const KvLayout& layout, const Clock& clock,
                       std::unique_ptr<Buffer> buffer, ChildKeyFunction child_key)
    : config_(config),
      layout_(layout),
      clock_(clock),
      pool_(std::move(buffer), config.device_blocks_max, layout.block_bytes()),
      index_(layout.block_tokens, config.device_blocks_max, child_key),
      blocks_(config.device_blocks_max) {
  for (uint32_t id = config.device_blocks_max; id > 0; --id) free_ids_.push_back(BlockId(id - 1));
}

BlockStore::~BlockStore() {
  CHECK(held_hot_count_ == 0);
  CHECK(hot_count_ + pool_.free_count() == pool_.capacity());  // and nothing is filling
}

std::vector<Hold> BlockStore::Match(const BlockKey& root, std::span<const uint32_t> tokens,
                                    uint32_t priority) {
  CHECK(priority <= kPriorityMax);
  const size_t block_count = tokens.size() / layout_.block_tokens;
  std::vector<Hold> holds;
  uint64_t found_count = 0;
  for (const PrefixIndex::Entry* entry : index_.Walk(root, tokens)) {
    Hold& hold = holds.emplace_back();
    if (!entry->block.valid()) continue;
    hold = Acquire(entry->block);
    BlockMeta& meta = At(entry->block);
    meta.priority = priority;
    meta.reused = true;
    ++found_count;
  }
  while (!holds.empty() && !holds.back()) holds.pop_back();
  counts_.hits += found_count;
  counts_.misses += block_count - found_count;
  return holds;
}

BlockNeed BlockStore::NeedOf(const BlockKey& root, std::span<const uint32_t> tokens,
                             uint32_t block_count) const {
  CHECK(block_count >= tokens.size() / layout_.block_tokens);
  BlockNeed need{.missing = block_count, .available = pool_.free_count() + evictable_count()};
  for (const PrefixIndex::Entry* entry : index_.Walk(root, tokens)) {
    if (!entry->block.valid()) continue;
    --need.missing;
    if (IsEvictable(entry->block)) --need.available;
  }
  return need;
}

std::vector<Tier> BlockStore::Locate(const BlockKey& root, std::span<const uint32_t> tokens) const {
  std::vector<Tier> tiers(tokens.size() / layout_.block_tokens, Tier::kAbsent);
  const std::vector<const PrefixIndex::Entry*> path = index_.Walk(root, tokens);
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i]->block.valid()) tiers[i] = Tier::kDevice;
  }
  return tiers;
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
  At(copy.id()).ready = stream.Record();
  At(source.block).reused = true;
  ++counts_.prefix_copies;
  return PartialBlock{std::move(copy), source.token_count};
}

Result<std::vector<Hold>> BlockStore::Reserve(uint32_t count) {
  const uint32_t free_count = pool_.free_count();
  if (count > free_count) {
    const uint32_t need = count - free_count;
    if (need > evictable_count()) {
      return ResourceExhausted("need " + std::to_string(count) +
                               " blocks: " + std::to_string(free_count) + " free, " +
                               std::to_string(evictable_count()) + " evictable, capacity " +
                               std::to_string(pool_.capacity()));
    }
    MakeRoom(need);
  }
  std::vector<Hold> holds;
  holds.reserve(count);
  for (uint32_t i = 0; i < count; ++i) holds.push_back(NewFilling());
  return holds;
}

Hold BlockStore::Seal(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
                      uint32_t priority) {
  BlockMeta& meta = At(filling.id());
  CHECK(meta.state == BlockState::kFilling && tokens.size() == layout_.block_tokens);
  const PrefixIndex::Placed placed = index_.Place(parent, tokens, filling.id(), seal_order_ + 1);
  counts_.collisions += placed.is_collision;
  if (!placed.is_new) {
    Hold equal = Acquire(placed.entry->block);
    BlockMeta& equal_meta = At(equal.id());
    equal_meta.priority = std::max(equal_meta.priority, priority);
    equal_meta.reused = true;
    ++counts_.duplicate_seals;
    if (config_.verify_duplicates) VerifyDuplicate(meta, equal_meta);
    filling.Release();
    return equal;
  }
  meta.key = placed.entry->key;
  meta.first_position = (placed.entry->depth - 1) * layout_.block_tokens;
  BecomeHot(meta, parent, layout_.block_tokens, priority);
  DropCoveredTails(parent, tokens);
  return filling;
}

void BlockStore::Park(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
                      uint32_t priority) {
  const BlockId id = filling.id();
  BlockMeta& meta = At(id);
  CHECK(meta.state == BlockState::kFilling && !tokens.empty());
  CHECK(tokens.size() < layout_.block_tokens);
  if (LongestCommon(parent, tokens).token_count == tokens.size()) return;  // a copy of that will do
  index_.PlaceTail(parent, id, seal_order_ + 1);
  meta.tail_tokens.assign(tokens.begin(), tokens.end());
  ++parked_count_;
  meta.first_position = index_.Find(parent)->depth * layout_.block_tokens;
  BecomeHot(meta, parent, static_cast<uint32_t>(tokens.size()), priority);
  DropCoveredTails(parent, tokens);
}

uint32_t BlockStore::DropUnheld(const BlockKey& root, std::span<const uint32_t> tokens) {
  const size_t full_count = tokens.size() / layout_.block_tokens;
  const std::vector<const PrefixIndex::Entry*> path = index_.Walk(root, tokens);
  std::vector<BlockId> doomed;
  for (const PrefixIndex::Entry* entry : path) {
    if (entry->block.valid() && IsEvictable(entry->block)) doomed.push_back(entry->block);
  }
  const PrefixIndex::Entry* last = path.empty() ? index_.Find(root) : path.back();
  if (path.size() == full_count && last != nullptr) {
    const auto rest = tokens.subspan(full_count * layout_.block_tokens);
    for (const auto& [order, id] : last->followers) {
      const std::vector<uint32_t>& tail = At(id).tail_tokens;
      if (!tail.empty() && CommonCount(tail, rest) == tail.size()) doomed.push_back(id);
    }
  }
  for (const BlockId id : doomed) Drop(id);
  return static_cast<uint32_t>(doomed.size());
}

BlockMeta& BlockStore::At(BlockId id) {
  CHECK(id.value() < blocks_.size() && blocks_[id.value()]);
  return *blocks_[id.value()];
}

const BlockMeta& BlockStore::At(BlockId id) const {
  CHECK(id.value() < blocks_.size() && blocks_[id.value()]);
  return *blocks_[id.value()];
}

bool BlockStore::IsEvictable(BlockId id) const {
  const BlockMeta& meta = At(id);
  return meta.state == BlockState::kHot && meta.hold_count == 0;
}

std::span<const uint32_t> BlockStore::TokensOf(const BlockMeta& meta) const {
  if (!meta.tail_tokens.empty()) return meta.tail_tokens;
  return index_.Find(meta.key)->tokens;
}

Hold BlockStore::NewFilling() {
  CHECK(!free_ids_.empty());
  const BlockId id = free_ids_.back();
  free_ids_.pop_back();
  blocks_[id.value()].emplace().slot = pool_.Take();
  return Acquire(id);
}

Hold BlockStore::Acquire(BlockId id) {
  BlockMeta& meta = At(id);
  if (meta.hold_count++ == 0 && meta.state == BlockState::kHot) ++held_hot_count_;
  return Hold(this, id);
}

void BlockStore::EndHold(BlockId id) {
  BlockMeta& meta = At(id);
  CHECK(meta.hold_count > 0);
  if (--meta.hold_count > 0) return;
  if (meta.state == BlockState::kFilling) return Free(id);
  --held_hot_count_;
  meta.last_use = clock_.Now();
  meta.use_order = ++use_order_;
}

void BlockStore::BecomeHot(BlockMeta& meta, const BlockKey& parent, uint32_t token_count,
                           uint32_t priority) {
  CHECK(priority <= kPriorityMax);
  meta.state = BlockState::kHot;
  meta.parent = parent;
  meta.token_count = token_count;
  meta.priority = priority;
  meta.seal_order = ++seal_order_;
  ++hot_count_;
  ++held_hot_count_;
  ++counts_.seals;
}

// The latest kSiblingScanMax sealed blocks that follow `parent`, latest first.
std::vector<BlockId> BlockStore::LatestFollowers(const BlockKey& parent) const {
  std::vector<BlockId> latest;
  const PrefixIndex::Entry* entry = index_.Find(parent);
  if (entry == nullptr) return latest;
  for (const auto& [order, id] : entry->followers) {
    if (latest.size() == kSiblingScanMax) break;
    latest.push_back(id);
  }
  return latest;
}

// Of these, the one that agrees longest with `tokens`; the latest among equals. token_count is 0
// when none agrees in the first token.
BlockStore::Common BlockStore::LongestCommon(const BlockKey& parent,
                                             std::span<const uint32_t> tokens) const {
  Common best;
  for (const BlockId id : LatestFollowers(parent)) {
    const uint32_t common_count = CommonCount(TokensOf(At(id)), tokens);
    if (common_count > best.token_count) best = {id, common_count};
  }
  return best;
}

// Of these, drops the parked tails that are prefixes of a block which was just sealed.
void BlockStore::DropCoveredTails(const BlockKey& parent, std::span<const uint32_t> tokens) {
  for (const BlockId id : LatestFollowers(parent)) {
    const BlockMeta& meta = At(id);
    if (meta.tail_tokens.empty() || meta.hold_count > 0) continue;
    if (CommonCount(meta.tail_tokens, tokens) == meta.tail_tokens.size()) Drop(id);
  }
}

void BlockStore::VerifyDuplicate(const BlockMeta& one, const BlockMeta& other) const {
  CHECK(std::memcmp(pool_.Address(one.slot), pool_.Address(other.slot), layout_.block_bytes()) ==
        0);
}

}  // namespace cairn
