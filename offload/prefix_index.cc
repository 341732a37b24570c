#include "offload/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace cairn {

bool PrefixIndex::Stands(const Entry& entry, const BlockKey& parent,
                         std::span<const uint32_t> tokens) const {
  return entry.parent != nullptr && *entry.parent->key == parent &&
         std::ranges::equal(TokensOf(entry), tokens);
}

std::vector<const PrefixIndex::Entry*> PrefixIndex::Walk(const BlockKey& root,
                                                         std::span<const uint32_t> tokens) const {
  std::vector<const Entry*> path;
  BlockKey parent = root;
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) {
    const auto block_tokens = tokens.first(block_tokens_);
    const Entry* entry = Find(child_key_(parent, block_tokens));
    if (entry == nullptr || !Stands(*entry, parent, block_tokens)) break;
    path.push_back(entry);
    parent = *entry->key;
  }
  return path;
}

const PrefixIndex::Entry* PrefixIndex::Find(const BlockKey& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

PrefixIndex::Placed PrefixIndex::Place(const BlockKey& parent, std::span<const uint32_t> tokens,
                                       BlockId block) {
  CHECK(tokens.size() == block_tokens_);
  Entry& parent_entry = Ensure(parent);  // references to entries last until they are erased
  BlockKey key = child_key_(parent, tokens);
  const Entry* standing = Find(key);
  const bool is_collision = standing != nullptr && !Stands(*standing, parent, tokens);
  while (is_collision && Find(key) != nullptr) {
    key = {Digest{MixBits(++private_key_count_), MixBits(key.digest.low)}};
  }
  Placed placed = Put(EnsureChild(parent_entry, key, tokens), block);
  placed.is_collision = is_collision;
  return placed;
}

std::optional<PrefixIndex::Placed> PrefixIndex::PlaceDeep(const BlockKey& root,
                                                          std::span<const uint32_t> tokens,
                                                          BlockId block) {
  CHECK(!tokens.empty() && tokens.size() % block_tokens_ == 0);
  Entry* parent = &Ensure(root);
  for (;; tokens = tokens.subspan(block_tokens_)) {
    const auto block_tokens = tokens.first(block_tokens_);
    const BlockKey key = child_key_(*parent->key, block_tokens);
    const Entry* standing = Find(key);
    if (standing != nullptr && !Stands(*standing, *parent->key, block_tokens)) {
      Prune(parent);
      return std::nullopt;
    }
    Entry& entry = EnsureChild(*parent, key, block_tokens);
    if (tokens.size() == block_tokens_) return Put(entry, block);
    parent = &entry;
  }
}

PrefixIndex::Entry& PrefixIndex::EnsureChild(Entry& parent, const BlockKey& key,
                                             std::span<const uint32_t> tokens) {
  Entry& entry = Ensure(key);
  if (entry.depth == 0) {
    entry.parent = &parent;
    entry.tokens = std::pmr::polymorphic_allocator<uint32_t>(&memory_).allocate(block_tokens_);
    std::ranges::copy(tokens, entry.tokens);
    entry.depth = parent.depth + 1;
    ++parent.child_entry_count;
  }
  return entry;
}

PrefixIndex::Placed PrefixIndex::Put(Entry& entry, BlockId block) {
  const bool is_new = !entry.block.valid();
  if (is_new) {
    entry.block = block;
    Follow(*entry.parent, block);
  }
  return {&entry, is_new, false};
}

void PrefixIndex::Remove(const BlockKey& key) {
  Entry& entry = At(key);
  CHECK(entry.block.valid());
  Unfollow(*entry.parent, std::exchange(entry.block, BlockId()));
  Prune(&entry);
}

const PrefixIndex::Entry* PrefixIndex::PlaceTail(const BlockKey& parent, BlockId block) {
  Entry& entry = Ensure(parent);
  Follow(entry, block);
  return &entry;
}

void PrefixIndex::RemoveTail(const BlockKey& parent, BlockId block) {
  Entry& entry = At(parent);
  Unfollow(entry, block);
  Prune(&entry);
}

void PrefixIndex::Follow(Entry& parent, BlockId block) {
  if (siblings_.size() <= block.value()) siblings_.resize(block.value() + 1);
  const BlockId older = std::exchange(parent.latest_follower, block);
  siblings_[block.value()] = {.older = older, .newer = BlockId()};
  if (older.valid()) siblings_[older.value()].newer = block;
}

void PrefixIndex::Unfollow(Entry& parent, BlockId block) {
  const Siblings own = std::exchange(siblings_[block.value()], {});
  if (own.older.valid()) siblings_[own.older.value()].newer = own.newer;
  if (own.newer.valid()) {
    siblings_[own.newer.value()].older = own.older;
  } else {
    CHECK(parent.latest_follower == block);
    parent.latest_follower = own.older;
  }
}

PrefixIndex::Entry& PrefixIndex::Ensure(const BlockKey& key) {
  const auto entry = entries_.try_emplace(key).first;
  entry->second.key = &entry->first;
  return entry->second;
}

PrefixIndex::Entry& PrefixIndex::At(const BlockKey& key) {
  const auto found = entries_.find(key);
  CHECK(found != entries_.end());
  return found->second;
}

// Erases the entry, and then its ancestors, as long as nothing needs them.
void PrefixIndex::Prune(Entry* entry) {
  while (entry != nullptr && !entry->block.valid() && !entry->has_descendants()) {
    Entry* const parent = entry->parent;
    if (parent != nullptr) {
      std::pmr::polymorphic_allocator<uint32_t>(&memory_).deallocate(entry->tokens, block_tokens_);
    }
    entries_.erase(entries_.find(*entry->key));
    if (parent != nullptr) --parent->child_entry_count;
    entry = parent;
  }
}

PrefixIndex::Totals PrefixIndex::CheckInvariants() const {
  Totals totals;
  size_t child_count = 0;          // entries that have a parent
  size_t counted_child_count = 0;  // as their parents count them
  for (const auto& [key, entry] : entries_) {
    totals.full_count += entry.block.valid();
    counted_child_count += entry.child_entry_count;
    CHECK(entry.key == &key);
    CHECK(entry.block.valid() || entry.has_descendants());
    BlockId newer;
    for (BlockId id = entry.latest_follower; id.valid(); id = FollowerBefore(id)) {
      CHECK(siblings_.at(id.value()).newer == newer);
      newer = id;
      ++totals.follower_count;
    }
    CHECK((entry.depth == 0) == (entry.parent == nullptr));
    CHECK((entry.depth == 0) == (entry.tokens == nullptr));
    if (entry.depth == 0) {
      CHECK(!entry.block.valid());
      continue;
    }
    ++child_count;
    CHECK(Find(*entry.parent->key) == entry.parent);
    CHECK(entry.depth == entry.parent->depth + 1 && entry.parent->child_entry_count > 0);
  }
  CHECK(child_count == counted_child_count);
  return totals;
}

}  // namespace cairn
