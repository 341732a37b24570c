// BlockStore owns every KV block: where it lies, who uses it, and when it goes. Sequences take
// empty blocks, fill them, seal them; sealed blocks are shared by everybody whose tokens are equal
// from position 0 on, stay for reuse after their last user, and are dropped, least valuable first,
// when slots are needed. (Sharing by content: PagedAttention and automatic prefix caching, Kwon et
// al. 2023.) block.h draws the states.
//
// A sequence's life with the store, `store` and `root` given, P = layout.block_tokens:
//
//   auto found = store.Match(root, tokens, priority);        // holds of what is there; holes
//   between auto copy = store.CopyPrefix(parent, rest, ...);         // perhaps: part of the next
//   block auto fresh = store.Reserve(holes + blocks to come);      // all of them, or none
//   ... the model fills fresh blocks through writable_address(), in any order ...
//   hold = store.Seal(std::move(hold), parent, P tokens, priority);   // in increasing position
//   parent = hold.key();                                     // parent of the next block
//   store.Park(std::move(tail), parent, its tokens, priority);        // at the end, if not empty
//
// Laws
// (1) Nothing foreign is served: a block is shared only when its own token ids and those of every
//     block before it were compared and are equal. Digests only find. For that, the parent that is
//     given to Seal, Park and CopyPrefix is the root or hold.key() of the block before.
// (2) A slot that was never written is zero; a reused one has old, finite values. Readers of a
//     block's unwritten positions (attention masks them) so always see finite numbers.
// (3) Work on the slots is ordered by the compute stream: whoever reads or writes a block does it
//     there, after Stream::Wait(hold.ready()). A dropped Hold may therefore precede the end of the
//     work that used its block.
//
// Errors: kResourceExhausted when slots are short. Threads: the engine thread only, Holds included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "offload/block.h"
#include "offload/block_key.h"
#include "offload/prefix_index.h"
#include "offload/slot_pool.h"

namespace cairn {

struct OffloadConfig {
  uint32_t device_blocks_max = 0;  // slots on the device; there is no "auto": 0 is refused
  // Compares the bytes of two blocks that are sealed with equal tokens (CHECK): the determinism law
  // says that they are equal. Costly; for tests.
  bool verify_duplicates = false;

  Status Validate() const;
};

// Counts since the start, except for the gauges.
struct BlockStoreStats {
  // Gauges, in blocks: capacity = free + filling + hot; hot = held_hot + evictable.
  uint32_t capacity = 0;
  uint32_t free = 0;
  uint32_t filling = 0;
  uint32_t hot = 0;
  uint32_t held_hot = 0;
  uint32_t evictable = 0;
  uint32_t parked = 0;  // tails, part of evictable
  uint64_t block_bytes = 0;

  uint64_t hits = 0;             // blocks that Match found
  uint64_t misses = 0;           // full blocks that it looked for in vain
  uint64_t prefix_copies = 0;    // blocks that CopyPrefix began with another's bytes
  uint64_t seals = 0;            // blocks that became hot
  uint64_t duplicate_seals = 0;  // sealed while an equal block was there: one of the two freed
  uint64_t collisions = 0;       // sealed while the key was taken by other tokens: not findable
  uint64_t evictions = 0;        // dropped because slots were needed
  uint64_t drops = 0;            // dropped on request, or as a tail that a longer block covers
};

class BlockStore;

// While a Hold lives, its block is on the device and stays there. Move-only: dropping it releases,
// and a kFilling block that is dropped is freed. Ends before its store does.
class [[nodiscard]] Hold {
 public:
  Hold() = default;  // holds nothing
  Hold(Hold&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), id_(std::exchange(other.id_, BlockId())) {}
  Hold& operator=(Hold&& other) noexcept;
  ~Hold() { Release(); }

  Hold Clone() const;  // one more Hold of the same sealed block
  void Release();      // from now on it holds nothing
  explicit operator bool() const { return store_ != nullptr; }

  BlockId id() const { return id_; }
  const BlockKey& key() const;          // of a sealed block: the parent of what follows it
  const std::byte* address() const;     // of the block's first byte
  std::byte* writable_address() const;  // kFilling only
  const EventRef& ready() const;        // wait for it, on the stream that uses the address

 private:
  friend class BlockStore;  // the only maker of Holds
  Hold(BlockStore* store, BlockId id) : store_(store), id_(id) {}
  BlockStore* store_ = nullptr;
  BlockId id_;
};

// A fresh kFilling block whose first `token_count` positions are written already.
struct PartialBlock {
  Hold block;
  uint32_t token_count = 0;
};

// What a context would take, beside the blocks that are there.
struct BlockNeed {
  uint32_t missing = 0;    // blocks that are not there
  uint32_t available = 0;  // blocks that Reserve could give once those that are there are held
};

class BlockStore {
 public:
  using ChildKeyFunction = PrefixIndex::ChildKeyFunction;

  // Takes the pool's memory at once. `device` and `clock` outlive the store. kInvalidArgument from
  // Validate; kResourceExhausted when the device has not so much memory. `child_key` is there for
  // tests, which force collisions with it.
  static Result<std::unique_ptr<BlockStore>> Create(const OffloadConfig& config,
                                                    const KvLayout& layout, Device& device,
                                                    const Clock& clock,
                                                    ChildKeyFunction child_key = &ChildKey);
  ~BlockStore();  // every Hold has ended
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // The sealed full blocks that begin with position 0 of `tokens`: element i has the tokens
  // [i * P, (i + 1) * P), and is an empty Hold where that block is missing (a hole: eviction drops
  // early blocks first). Ends at the last block that is there. A remainder of fewer than P tokens
  // is not looked at. What is found counts as used, and takes `priority`.
  std::vector<Hold> Match(const BlockKey& root, std::span<const uint32_t> tokens,
                          uint32_t priority);

  // The tier of every full block of `tokens`, floor(size / P) elements. Changes nothing.
  std::vector<Tier> Locate(const BlockKey& root, std::span<const uint32_t> tokens) const;

  // What `block_count` blocks for `tokens` would take. Changes nothing, so it may be asked often.
  BlockNeed NeedOf(const BlockKey& root, std::span<const uint32_t> tokens,
                   uint32_t block_count) const;

  // Copy-on-write for forks, rewinds into a block and parked tails: among the sealed blocks, full
  // or parked, that follow `parent`, takes the one with the longest common prefix with `tokens`
  // (at least 1; the kSiblingScanMax most recent ones are compared), and copies its bytes on
  // `stream`, the compute stream, into a fresh slot, which may evict another block. Nothing when no
  // block fits or no slot is to be had. token_count is at most tokens.size() and at most P.
  std::optional<PartialBlock> CopyPrefix(const BlockKey& parent, std::span<const uint32_t> tokens,
                                         Stream& stream);

  // `count` fresh kFilling blocks, all or none. Evicts unheld blocks when it must; succeeds exactly
  // when count <= free + evictable, otherwise kResourceExhausted.
  Result<std::vector<Hold>> Reserve(uint32_t count);

  // A filled block becomes immutable and findable under its tokens. When an equal block is there
  // already, the result is that one, and this one is freed (their bytes are equal).
  Hold Seal(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
            uint32_t priority);

  // The tail of a sequence, 1 to P - 1 tokens, becomes immutable and is kept, unheld, as a source
  // for CopyPrefix. Freed at once when another sealed block begins with the same tokens.
  void Park(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
            uint32_t priority);

  // Drops the blocks of `tokens`, tail included, that nobody holds; idle contexts that share some
  // of them lose these too. Returns how many.
  uint32_t DropUnheld(const BlockKey& root, std::span<const uint32_t> tokens);
  // Drops every block that nobody holds. Returns how many.
  uint32_t Clear();

  BlockStoreStats stats() const;
  const KvLayout& layout() const { return layout_; }

  // Conservation laws; a violation is a CHECK failure. O(blocks).
  void CheckInvariants() const;

  static constexpr uint32_t kSiblingScanMax = 32;

 private:
  friend class Hold;
  struct Victim {
    BlockId block;
    uint64_t use_order;  // it is still the victim only while this is its last use
  };
  struct Common {
    BlockId block;
    uint32_t token_count = 0;  // that block and tokens have in common
  };
  BlockStore(const OffloadConfig& config, const KvLayout& layout, const Clock& clock,
             std::unique_ptr<Buffer> buffer, ChildKeyFunction child_key);

  BlockMeta& At(BlockId id);
  const BlockMeta& At(BlockId id) const;
  uint32_t evictable_count() const { return hot_count_ - held_hot_count_; }
  bool IsEvictable(BlockId id) const;
  std::span<const uint32_t> TokensOf(const BlockMeta& meta) const;

  Hold NewFilling();
  Hold Acquire(BlockId id);
  void EndHold(BlockId id);
  void MakeRoom(uint32_t need);
  void RankVictims(uint32_t need);
  void Evict(BlockId id);
  void Drop(BlockId id);
  void Free(BlockId id);
  void BecomeHot(BlockMeta& meta, const BlockKey& parent, uint32_t token_count, uint32_t priority);
  std::vector<BlockId> LatestFollowers(const BlockKey& parent) const;
  Common LongestCommon(const BlockKey& parent, std::span<const uint32_t> tokens) const;
  void DropCoveredTails(const BlockKey& parent, std::span<const uint32_t> tokens);
  void VerifyDuplicate(const BlockMeta& one, const BlockMeta& other) const;

  const OffloadConfig config_;
  const KvLayout layout_;
  const Clock& clock_;
  SlotPool pool_;
  PrefixIndex index_;
  std::vector<std::optional<BlockMeta>> blocks_;  // by BlockId; as many as there are slots
  std::vector<BlockId> free_ids_;
  std::vector<Victim> victims_;  // ranked, the next one last
  uint32_t hot_count_ = 0;
  uint32_t held_hot_count_ = 0;
  uint32_t parked_count_ = 0;
  uint64_t use_order_ = 0;
  uint64_t seal_order_ = 0;
  BlockStoreStats counts_;  // the counters; stats() adds the gauges
};

}  // namespace cairn
