// PrefixIndex finds sealed blocks by the tokens that lead up to them. It is a tree: an entry stands
// for a prefix of whole blocks, knows the tokens of its last block and its parent entry, and may
// have a block or be a hole. An entry stays as long as a block lies on it or below it, so that a
// walk from the root compares every token, across holes too; it goes with the last of them.
//
// Keys are digests and may collide. A walk ends where an entry with the right key has other tokens,
// and Place gives a prefix whose key is taken a private one, which no walk finds.
//
// Memory: about 140 bytes an entry, at most (depth of the deepest chain) entries a block.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "offload/block_key.h"

namespace cairn {

class PrefixIndex {
 public:
  using ChildKeyFunction = BlockKey (*)(const BlockKey&, std::span<const uint32_t>);

  // Stays where it is as long as it is there.
  struct Entry {
    const BlockKey* key = nullptr;
    Entry* parent = nullptr;         // null: a root
    uint32_t* tokens = nullptr;      // of the prefix's last block; null for a root
    uint32_t depth = 0;              // blocks in the prefix; 0 for a root
    uint32_t child_entry_count = 0;  // entries whose parent this is
    BlockId block;                   // the prefix's last block, or none: a hole
    BlockId latest_follower;         // of the sealed blocks that follow it, full or parked
    bool has_descendants() const { return child_entry_count > 0 || latest_follower.valid(); }
  };

  // Room for `block_count_max` blocks and as many holes is made at once: growing later would stall
  // a step for tens of milliseconds at 100,000 blocks.
  PrefixIndex(uint32_t block_tokens, uint32_t block_count_max, ChildKeyFunction child_key)
      : block_tokens_(block_tokens), child_key_(child_key) {
    entries_.reserve(2 * size_t{block_count_max});
  }

  // The entries along `tokens`, from depth 1 on, as far as there are any. Valid until a change.
  std::vector<const Entry*> Walk(const BlockKey& root, std::span<const uint32_t> tokens) const;

  // The entry under a key that a caller was given; null if there is none.
  const Entry* Find(const BlockKey& key) const;

  std::span<const uint32_t> TokensOf(const Entry& entry) const {
    return {entry.tokens, entry.depth > 0 ? block_tokens_ : 0};
  }

  // Puts a full block on the prefix `parent` + `tokens`, or finds the one that is there already.
  // An unknown parent is a root.
  struct Placed {
    const Entry* entry;
    bool is_new;        // the given block was put there
    bool is_collision;  // under a private key
  };
  Placed Place(const BlockKey& parent, std::span<const uint32_t> tokens, BlockId block);
  // The same for the last block of `tokens`, which begin at position 0 and are whole blocks; those
  // before it may be missing. Null when the key of one of them is taken by other tokens.
  std::optional<Placed> PlaceDeep(const BlockKey& root, std::span<const uint32_t> tokens,
                                  BlockId block);
  void Remove(const BlockKey& key);

  // A parked tail follows `parent`, whose entry this returns, and is no prefix of whole blocks
  // itself.
  const Entry* PlaceTail(const BlockKey& parent, BlockId block);
  void RemoveTail(const BlockKey& parent, BlockId block);

  // Of the blocks that follow the same prefix, the one that was placed next before `block`.
  BlockId FollowerBefore(BlockId block) const { return siblings_.at(block.value()).older; }

  BlockKey KeyOf(const BlockKey& parent, std::span<const uint32_t> tokens) const {
    return child_key_(parent, tokens);
  }

  size_t entry_count() const { return entries_.size(); }

  // Every entry is needed, linked both ways and counted right; a violation is a CHECK failure.
  // Returns what lies in the index, for its owner to compare.
  struct Totals {
    size_t full_count = 0;      // blocks on entries
    size_t follower_count = 0;  // full and parked blocks
  };
  Totals CheckInvariants() const;

 private:
  struct Siblings {  // of a block that follows a prefix
    BlockId older;
    BlockId newer;
  };

  Entry& Ensure(const BlockKey& key);
  Entry& EnsureChild(Entry& parent, const BlockKey& key, std::span<const uint32_t> tokens);
  bool Stands(const Entry& entry, const BlockKey& parent, std::span<const uint32_t> tokens) const;
  Placed Put(Entry& entry, BlockId block);
  void Follow(Entry& parent, BlockId block);
  void Unfollow(Entry& parent, BlockId block);
  Entry& At(const BlockKey& key);
  void Prune(Entry* entry);

  const uint32_t block_tokens_;
  const ChildKeyFunction child_key_;
  std::pmr::unsynchronized_pool_resource memory_;  // of entries and their tokens
  std::pmr::unordered_map<BlockKey, Entry> entries_{&memory_};
  std::deque<Siblings> siblings_;  // by BlockId
  uint64_t private_key_count_ = 0;
};

}  // namespace cairn
