#include "offload/prefix_index.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"

namespace cairn {
namespace {

bool Stands(const PrefixIndex::Entry& entry, const BlockKey& parent,
            std::span<const uint32_t> tokens) {
  return entry.depth > 0 && entry.parent == parent && std::ranges::equal(entry.tokens, tokens);
}

}  // namespace

std::vector<const PrefixIndex::Entry*> PrefixIndex::Walk(const BlockKey& root,
                                                         std::span<const uint32_t> tokens) const {
  std::vector<const Entry*> path;
  BlockKey parent = root;
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) {
    const auto block_tokens = tokens.first(block_tokens_);
    const Entry* entry = Find(child_key_(parent, block_tokens));
    if (entry == nullptr || !Stands(*entry, parent, block_tokens)) break;
    path.push_back(entry);
    parent = entry->key;
  }
  return path;
}

const PrefixIndex::Entry* PrefixIndex::Find(const BlockKey& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

PrefixIndex::Placed PrefixIndex::Place(const BlockKey& parent, std::span<const uint32_t> tokens,
                                       BlockId block, uint64_t order) {
  CHECK(tokens.size() == block_tokens_);
  Entry& parent_entry = Ensure(parent);  // references to entries last until they are erased
  BlockKey key = child_key_(parent, tokens);
  const Entry* standing = Find(key);
  const bool is_collision = standing != nullptr && !Stands(*standing, parent, tokens);
  while (is_collision && Find(key) != nullptr) {
    key = {Digest{MixBits(++private_key_count_), MixBits(key.digest.low)}};
  }
  Placed placed = Put(parent_entry, EnsureChild(parent_entry, key, tokens), block, order);
  placed.is_collision = is_collision;
  return placed;
}

std::optional<PrefixIndex::Placed> PrefixIndex::PlaceDeep(const BlockKey& root,
                                                          std::span<const uint32_t> tokens,
                                                          BlockId block, uint64_t order) {
  CHECK(!tokens.empty() && tokens.size() % block_tokens_ == 0);
  Entry* parent = &Ensure(root);
  for (;; tokens = tokens.subspan(block_tokens_)) {
    const auto block_tokens = tokens.first(block_tokens_);
    const BlockKey key = child_key_(parent->key, block_tokens);
    const Entry* standing = Find(key);
    if (standing != nullptr && !Stands(*standing, parent->key, block_tokens)) {
      Prune(parent->key);
      return std::nullopt;
    }
    Entry& entry = EnsureChild(*parent, key, block_tokens);
    if (tokens.size() == block_tokens_) return Put(*parent, entry, block, order);
    parent = &entry;
  }
}

PrefixIndex::Entry& PrefixIndex::EnsureChild(Entry& parent, const BlockKey& key,
                                             std::span<const uint32_t> tokens) {
  Entry& entry = Ensure(key);
  if (entry.depth == 0) {
    entry.parent = parent.key;
    entry.tokens.assign(tokens.begin(), tokens.end());
    entry.depth = parent.depth + 1;
    ++parent.child_entry_count;
  }
  return entry;
}

PrefixIndex::Placed PrefixIndex::Put(Entry& parent, Entry& entry, BlockId block, uint64_t order) {
  const bool is_new = !entry.block.valid();
  if (is_new) {
    entry.block = block;
    parent.followers.emplace(order, block);
  }
  return {&entry, is_new, false};
}

void PrefixIndex::Remove(const BlockKey& key, uint64_t order) {
  Entry& entry = At(key);
  CHECK(entry.block.valid());
  entry.block = BlockId();
  CHECK(At(entry.parent).followers.erase(order) == 1);
  Prune(key);
}

void PrefixIndex::PlaceTail(const BlockKey& parent, BlockId block, uint64_t order) {
  Ensure(parent).followers.emplace(order, block);
}

void PrefixIndex::RemoveTail(const BlockKey& parent, uint64_t order) {
  CHECK(At(parent).followers.erase(order) == 1);
  Prune(parent);
}

PrefixIndex::Entry& PrefixIndex::Ensure(const BlockKey& key) {
  Entry& entry = entries_[key];
  entry.key = key;
  return entry;
}

PrefixIndex::Entry& PrefixIndex::At(const BlockKey& key) {
  const auto found = entries_.find(key);
  CHECK(found != entries_.end());
  return found->second;
}

// Erases the entry, and then its ancestors, as long as nothing needs them.
void PrefixIndex::Prune(BlockKey key) {
  for (;;) {
    const Entry& entry = At(key);
    if (entry.block.valid() || entry.child_entry_count > 0 || !entry.followers.empty()) return;
    const bool is_root = entry.depth == 0;
    const BlockKey parent = entry.parent;
    entries_.erase(key);
    if (is_root) return;
    --At(parent).child_entry_count;
    key = parent;
  }
}

PrefixIndex::Totals PrefixIndex::CheckInvariants() const {
  Totals totals;
  size_t child_count = 0;          // entries that have a parent
  size_t counted_child_count = 0;  // as their parents count them
  for (const auto& [key, entry] : entries_) {
    totals.full_count += entry.block.valid();
    totals.follower_count += entry.followers.size();
    counted_child_count += entry.child_entry_count;
    CHECK(entry.key == key);
    CHECK(entry.block.valid() || entry.child_entry_count > 0 || !entry.followers.empty());
    CHECK(entry.tokens.size() == (entry.depth == 0 ? 0 : block_tokens_));
    if (entry.depth == 0) {
      CHECK(!entry.block.valid());
      continue;
    }
    ++child_count;
    const Entry* parent = Find(entry.parent);
    CHECK(parent != nullptr);
    CHECK(entry.depth == parent->depth + 1 && parent->child_entry_count > 0);
  }
  CHECK(child_count == counted_child_count);
  return totals;
}

}  // namespace cairn
