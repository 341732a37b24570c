// BlockStore owns every KV block: where its copies lie, who uses it, how it moves between tiers,
// and when it goes. Sequences take empty blocks, fill them, seal them; sealed blocks are shared by
// everybody whose tokens are equal from position 0 on, stay for reuse after their last user, and
// leave the faster tiers, least valuable first, when slots are needed. (Sharing by content:
// PagedAttention and automatic prefix caching, Kwon et al. 2023.) block.h draws the states.
//
// A sequence's life with the store, `store` and `root` given, P = layout.block_tokens:
//
//   auto found = store.Match(root, tokens, priority);   // holds of what is there, between holes
//   auto copy = store.CopyPrefix(parent, rest, ...);    // perhaps: a part of the next block
//   auto fresh = store.Reserve(holes + new blocks);     // all of them, or none
//   ... Poll until no hold is loading; what is lost then is computed again ...
//   ... the model fills fresh blocks through writable_address(), in any order ...
//   hold = store.Seal(std::move(hold), parent, P tokens, priority);  // in increasing position
//   parent = hold.key();                                             // of the next block
//   store.Park(std::move(tail), parent, its tokens, priority);       // at the end, if not empty
//
// Laws
// (1) Nothing foreign is served: a block is shared only when its own token ids and those of every
//     block before it were compared and are equal. Digests only find. For that, the parent that is
//     given to Seal, Park and CopyPrefix is the root or hold.key() of the block before. (Of blocks
//     that an earlier process left on disk, the chain before them is compared by its digest, which
//     is cryptographic: block_key.h; their own tokens when they are read.)
// (2) A slot that was never written is zero; a reused one has old, finite values. Readers of a
//     block's unwritten positions (attention masks them) so always see finite numbers.
// (3) Work on the slots is ordered by the compute stream: whoever reads or writes a block does it
//     there, after Stream::Wait(hold.ready()), and has synchronised it before the Hold is dropped.
//     (Copies that CopyPrefix begins are the store's own concern.)
// (4) A copy counts when it is complete. A slot that a move reads or writes is not given to anybody
//     else before the move is over, however it ends.
// (5) No call waits for a move. Moves end in Poll.
//
// Errors: kResourceExhausted when slots are short. Threads: the engine thread only, Holds included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "offload/block.h"
#include "offload/block_key.h"
#include "offload/block_prices.h"
#include "offload/block_store_stats.h"
#include "offload/copy_queue.h"
#include "offload/disk_tier.h"
#include "offload/eviction.h"
#include "offload/flow_meter.h"
#include "offload/idle_watch.h"
#include "offload/prefix_index.h"
#include "offload/reuse_odds.h"
#include "offload/slot_pool.h"
#include "offload/spill_store.h"
#include "offload/staged_spill_store.h"

namespace cairn {

struct OffloadConfig {
  uint32_t device_blocks_max = 0;  // slots on the device; there is no "auto": 0 is refused
  uint32_t host_blocks_max = 0;    // slots in the host pool; 0: there is none
  // Blocks in the host pool are used where they lie, if the device can; otherwise they are copied
  // to the device first.
  bool host_in_place = true;
  bool lock_host = false;  // the host pool is never swapped out
  // Slots in the host's memory through which blocks pass between the disk and a device that threads
  // of the host cannot address (DeviceInfo::host_addressable); at least 2.
  uint32_t staging_blocks_max = 32;
  uint64_t host_bandwidth_limit = 0;  // bytes a second between device and host; 0: none
  EvictionPolicy eviction = EvictionPolicy::kPrices;
  // Compares the bytes of two blocks that are sealed with equal tokens (CHECK): the determinism law
  // says that they are equal. Costly; for tests.
  bool verify_duplicates = false;

  Status Validate() const;
};

class BlockStore;

// While a Hold lives, its block stays resident, once it is. Move-only: dropping it releases, and a
// kFilling block that is dropped is freed. Ends before its store does.
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
  const BlockKey& key() const;  // of a sealed block: the parent of what follows it
  bool is_sealed() const;       // otherwise it is this Hold's to fill
  bool is_ready() const;        // resident: it has an address
  bool is_loading() const;      // not yet
  bool is_lost() const { return !is_ready() && !is_loading(); }  // its load failed
  Tier tier() const;                                             // where its fastest copy lies
  const std::byte* address() const;     // of the block's first byte; is_ready()
  std::byte* writable_address() const;  // kFilling only
  const EventRef& ready() const;        // wait for it, on the stream that uses the address
  // Of one that is loading layer by layer (Match): what brings it, and the address that it will
  // have. Null otherwise.
  CopyRef arrival() const;
  const std::byte* arrival_address() const;

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
  uint32_t missing = 0;    // slots: for blocks that are not resident, nor on their way
  uint32_t available = 0;  // slots that could be had once those that are there are held
  uint32_t lossless = 0;   // of these, slots that cost no block a last copy that is worth writing
};

class BlockStore {
 public:
  using ChildKeyFunction = PrefixIndex::ChildKeyFunction;

  // Takes the pools' memory at once. `device` and `clock` outlive the store; `spill` may be null:
  // there is no disk tier. kInvalidArgument from Validate; kResourceExhausted when there is not so
  // much memory. `child_key` is there for tests, which force collisions with it.
  static Result<std::unique_ptr<BlockStore>> Create(const OffloadConfig& config,
                                                    const KvLayout& layout, Device& device,
                                                    const Clock& clock,
                                                    std::unique_ptr<SpillStore> spill = nullptr,
                                                    ChildKeyFunction child_key = &ChildKey);
  ~BlockStore();  // every Hold has ended; waits for moves
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // The sealed full blocks that begin with position 0 of `tokens`: element i has the tokens
  // [i * P, (i + 1) * P), and is an empty Hold where that block is missing (a hole: eviction drops
  // early blocks first). Ends at the last block that is there. A remainder of fewer than P tokens
  // is not looked at. What is found counts as used, and takes `priority`. Blocks that are not
  // resident begin to load, as far as slots and the disk permit; otherwise they count as missing.
  std::vector<Hold> Match(const BlockKey& root, std::span<const uint32_t> tokens,
                          uint32_t priority);
  // The same, but of the blocks that are not resident only those that `loads` names begin to load,
  // in that order; the others count as missing. `turn`: as in restore_plan.h, of loads from disk;
  // copies from the host pool know only kTurnAhead, which begin while nobody waits for another.
  // `by_layer`: those that begin now come together, layer by layer (copy_queue.h), if
  // may_arrive_by_layer().
  std::vector<Hold> Match(const BlockKey& root, std::span<const uint32_t> tokens, uint32_t priority,
                          std::span<const uint32_t> loads, uint32_t turn = 0,
                          bool by_layer = false);
  // Blocks in the host pool, where there is one, are used there.
  bool uses_host_in_place() const { return host_in_place_; }
  // Blocks in the host pool are copied before they are used.
  bool may_arrive_by_layer() const { return can_demote(); }
  // The event of a layer of what comes so; blocks until the copy has begun.
  EventRef AwaitLayer(const QueuedCopy& arrival, uint32_t layer) {
    return copy_queue_->AwaitBegin(arrival, layer);
  }
  // A hold of block `index` of `tokens`, which begins to load if it does not already; empty when it
  // cannot.
  Hold MatchOne(const BlockKey& root, std::span<const uint32_t> tokens, size_t index,
                uint32_t priority, uint32_t turn = 0);
  // The load of a block, if it is on its way: as in DiskTier.
  void ChangeTurn(BlockId id, uint32_t from, uint32_t to);
  // Within their turn, loads of these blocks from disk begin in this order.
  void Reorder(std::span<const BlockId> blocks);
  // Loads begin in the order of their turns from now on. Poll does it too.
  void OrderLoads();

  // The tier of every full block of `tokens`, floor(size / P) elements. Changes nothing.
  std::vector<Tier> Locate(const BlockKey& root, std::span<const uint32_t> tokens);
  // The same, as seen by who wants to use them. A copy that cannot be loaded now counts as none.
  std::vector<Origin> Survey(const BlockKey& root, std::span<const uint32_t> tokens);

  // What `block_count` blocks for `tokens` would take. Changes nothing, so it may be asked often.
  BlockNeed NeedOf(const BlockKey& root, std::span<const uint32_t> tokens, uint32_t block_count);

  // Whether `count` slots are worth waiting for, because moves that are under way, or were begun
  // now, will free them without a loss. Who has `waited` for much longer than it takes to compute
  // again what would be lost waits no more: then moves that have not begun are given up.
  bool AwaitsRoom(uint32_t count, Clock::Monotonic::duration waited);

  // Copy-on-write for forks, rewinds into a block and parked tails: among the sealed blocks, full
  // or parked, that follow `parent` and are resident, takes the one with the longest common prefix
  // with `tokens` (at least 1; the kSiblingScanMax most recent ones are compared), and copies its
  // bytes on `stream`, the compute stream, into a fresh slot, which may evict another block.
  // Nothing when no block fits or no slot is to be had. token_count is at most tokens.size() and at
  // most P.
  std::optional<PartialBlock> CopyPrefix(const BlockKey& parent, std::span<const uint32_t> tokens,
                                         Stream& stream);

  // `count` fresh kFilling blocks, all or none, those in the host pool first. Evicts unheld blocks
  // when it must; succeeds exactly when count <= free + evictable, otherwise kResourceExhausted.
  Result<std::vector<Hold>> Reserve(uint32_t count);

  // A filled block becomes immutable and findable under its tokens. When an equal block is there
  // already, the result is that one, and this one is freed or becomes a copy of it (their bytes are
  // equal).
  Hold Seal(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
            uint32_t priority);

  // The tail of a sequence, 1 to P - 1 tokens, becomes immutable and is kept, unheld, as a source
  // for CopyPrefix. Freed at once when another sealed block begins with the same tokens.
  void Park(Hold filling, const BlockKey& parent, std::span<const uint32_t> tokens,
            uint32_t priority);

  // Moves the blocks of `tokens` that nobody holds out of the tiers above `tier` (kHost, kDisk), as
  // far as there is room below; idle contexts that share some of them find these there too. `done`
  // comes, in Poll or at once, when all that could go has gone. With kAbsent every copy is dropped,
  // tail included.
  void Suspend(const BlockKey& root, std::span<const uint32_t> tokens, Tier tier,
               std::function<void()> done);
  // Drops every copy of the blocks of `tokens`, from block `first` on, that nobody holds, and of
  // the tail. Returns how many blocks.
  uint32_t DropUnheld(const BlockKey& root, std::span<const uint32_t> tokens, uint32_t first = 0);
  // The same from the last block of `tokens` towards block `first`, as far as nothing else follows
  // a block: what other contexts share stays.
  uint32_t DropOwn(const BlockKey& root, std::span<const uint32_t> tokens, uint32_t first);
  // Drops the copies in one tier, or every copy (kAbsent), of all blocks that nobody holds. Returns
  // how many.
  uint32_t Clear(Tier tier = Tier::kAbsent);

  // Ends moves that are over. True when there were any.
  bool Poll();
  // The same for those between the pools, and nobody is told.
  bool EndCopies();
  // Writes some idle blocks further down ahead of need: those among the next to go that it pays to
  // write. Once a step.
  void WriteBack();
  // Writes every idle block that has no copy on disk, the most valuable first. `done` as in
  // Suspend.
  void SpillAll(std::function<void()> done);
  // Copies within memory are under way, which wake nobody: Poll again soon.
  bool has_copies_under_way() const {
    return !copies_.empty() || (staging_ != nullptr && staging_->is_copying());
  }
  // Somebody waits for `done`.
  bool has_departures() const { return !departures_.empty(); }
  // Calls `done` of all of them now; what is under way goes on.
  void EndDepartures();
  // Computing a block costs so much: what copies of it are weighed against.
  void SetRecomputePrice(const RecomputePrice& price) { recompute_price_ = price; }

  BlockStoreStats stats() const;
  std::optional<DiskTierStats> disk_stats() const;  // none without a disk tier
  LoadFlow host_flow() const;  // with the limit on the bandwidth; so is the disk's
  LoadFlow disk_flow() const { return disk_ ? disk_->load_flow() : LoadFlow(); }
  // Of a block's load from there.
  PredictionHistogram LoadPredictions(Tier tier) const;
  const KvLayout& layout() const { return layout_; }

  // Conservation laws; a violation is a CHECK failure. O(blocks).
  void CheckInvariants() const;

  static constexpr uint32_t kSiblingScanMax = 32;

 private:
  friend class Hold;
  // What a block is to the accounts of slots.
  enum class Standing : uint8_t {
    kFilling,
    kHeld,
    kBusy,
    kClean,  // the rest of those that are resident: a tail, or there is a copy further down
    kCheap,  // or computing it again costs less than writing one
    kDirty,  // or neither
    kCold,
    kCount
  };
  enum class Idle : uint8_t { kAll, kLossless, kDirty };
  struct Place {
    Tier tier = Tier::kAbsent;
    SlotId slot;
  };
  struct Victim {
    BlockId block;
    uint64_t use_order;  // it is still the victim only while this is its last use
  };
  struct Common {
    BlockId block;
    uint32_t token_count = 0;  // that block and tokens have in common
  };
  // Somebody waits for blocks to leave; `done` comes when nothing refers to it any more.
  struct Departure {
    std::function<void()> done;
    Tier tier;  // to where
  };
  using DepartureRef = std::shared_ptr<Departure>;
  struct Leaving {  // waits for its turn
    BlockId block;
    uint64_t seal_order;  // it is still that block
    DepartureRef departure;
  };
  struct Move {
    BlockId block;
    Place target;        // of a load, a demotion and a promotion
    RecordId record;     // of a load from disk
    uint32_t turn = 0;   // of a load
    bool waits = false;  // a promotion ahead of need, or by layer, that has not been ordered
    CopyRef copy;        // of others between the pools
    DepartureRef departure;
    bool is_stuck = false;  // a spill that hangs: nobody waits for it any more
  };
  class Change;  // of a block, with the accounts kept

  // What Create has taken.
  struct Parts {
    bool host_in_place;
    bool host_addressable;
    std::unique_ptr<Buffer> device;
    std::unique_ptr<Buffer> host;
    std::unique_ptr<CopyQueue> copies;  // null: there are none
    std::unique_ptr<SpillStore> spill;
    StagedSpillStore* staging;  // `spill`, if it is one
  };
  BlockStore(const OffloadConfig& config, const KvLayout& layout, const Clock& clock, Parts parts,
             ChildKeyFunction child_key);
  static Status TakeMemory(const OffloadConfig& config, const KvLayout& layout, Device& device,
                           const Clock& clock, Parts& parts);

  BlockMeta& At(BlockId id);
  const BlockMeta& At(BlockId id) const;
  Standing StandingOf(const BlockMeta& meta) const;
  uint32_t Count(Standing standing) const { return tally_[static_cast<size_t>(standing)]; }
  uint32_t& Tally(Standing standing) { return tally_[static_cast<size_t>(standing)]; }
  uint32_t lossless_count() const { return Count(Standing::kClean) + Count(Standing::kCheap); }
  uint32_t evictable_count() const { return lossless_count() + Count(Standing::kDirty); }
  uint32_t free_count() const;
  bool can_demote() const { return host_pool_ && !host_in_place_; }  // ahead of need
  bool has_lower_tier() const { return disk_ || can_demote(); }
  double tokens_of_a_block() const { return layout_.block_tokens; }
  static bool IsLossless(Standing standing) {
    return standing == Standing::kClean || standing == Standing::kCheap;
  }
  static bool IsEvictable(Standing standing) {
    return IsLossless(standing) || standing == Standing::kDirty;
  }
  bool IsResident(const BlockMeta& meta) const;
  bool IsHereOrComing(BlockId id) const;
  Origin OriginOf(const BlockMeta& meta) const;
  template <class Where>
  std::vector<Where> Along(const BlockKey& root, std::span<const uint32_t> tokens,
                           Where (BlockStore::*of)(const BlockMeta&) const);
  bool IsAbsent(const BlockMeta& meta) const;
  bool HasLowerCopy(const BlockMeta& meta) const;
  Tier TierOf(const BlockMeta& meta) const;
  std::byte* AddressOf(const BlockMeta& meta) const;
  bool IsTail(const BlockMeta& meta) const {
    return meta.state == BlockState::kSealed && meta.token_count < layout_.block_tokens;
  }
  // Of what the block follows.
  const PrefixIndex::Entry* ParentOf(const BlockMeta& meta) const {
    return IsTail(meta) ? meta.entry : meta.entry->parent;
  }
  std::span<const uint32_t> TokensOf(BlockId id) const;
  BlockIdentity IdentityOf(const BlockMeta& meta) const;
  std::vector<const PrefixIndex::Entry*> PathOf(const BlockKey& root,
                                                std::span<const uint32_t> tokens);

  SlotPool& PoolOf(Tier tier) { return tier == Tier::kDevice ? device_pool_ : *host_pool_; }
  Place TakeSlot(Tier first_choice);
  void GiveSlot(const Place& place);
  static SlotId& SlotIn(BlockMeta& meta, Tier tier) {
    return tier == Tier::kDevice ? meta.device : meta.host;
  }
  void SetSlot(BlockId id, const Place& place);
  template <class See>
  void ForEachResident(See see) const;

  void AdoptRecord(const BlockKey& root, std::span<const uint32_t> tokens, RecordId record);
  std::vector<BlockId> BlocksOf(const BlockKey& root, std::span<const uint32_t> tokens,
                                uint32_t first);
  BlockId NewId();
  Hold NewFilling(const Place& place);
  Hold Acquire(BlockId id);
  Hold AcquireForUse(BlockId id, uint32_t priority);
  void EndHold(BlockId id);
  void Evict(BlockId id);
  bool Drop(BlockId id);
  bool DropCopy(BlockId id, Tier tier);
  void FreeIfGone(BlockId id);
  void Free(BlockId id);
  void BecomeHot(BlockMeta& meta, size_t token_count, uint32_t priority);
  Hold SealAgain(Hold filling, BlockId equal, uint32_t priority);
  std::vector<BlockId> LatestFollowers(const BlockKey& parent) const;
  Common LongestCommon(const BlockKey& parent, std::span<const uint32_t> tokens) const;
  void DropCoveredTails(const BlockKey& parent, std::span<const uint32_t> tokens);
  void CheckBlock(BlockId id, const BlockMeta& meta) const;
  void VerifyDuplicate(const BlockMeta& one, const BlockMeta& other);

  // What blocks are worth, and who makes room: block_store_worth.cc.
  BlockPrices PricesNow() const;
  Origin NextCopyOf(const BlockMeta& meta) const;
  double ReturnRateOf(const BlockMeta& meta, Clock::Monotonic now) const;
  EvictionCandidate CandidateOf(BlockId id, double cost_s, Clock::Monotonic now) const;
  std::vector<BlockId> RankIdle(uint32_t count, Idle kind, bool as_if_written = false) const;
  void MakeRoom(uint32_t need);
  bool MakeHostRoom(BlockId incoming);
  std::vector<EvictionCandidate> HostCopies(Idle kind, Clock::Monotonic now) const;
  double HostCopySaves(const BlockPrices& prices, const BlockMeta& meta) const;
  void WeighWriting();
  bool PaysWhileIdle(const BlockPrices& prices, const BlockMeta& meta) const;
  void ProbeWriting();
  void WriteDownHost();

  // Moves: block_store_moves.cc.
  MoveId NextMove() { return MoveId(next_move_++); }
  bool CanLoad(const BlockMeta& meta) const;
  bool BeginLoad(BlockId id, uint32_t turn, bool by_layer = false);
  void BeginPromotion(Move& move);
  void BeginByLayer();
  void BeginPromotionsAhead();
  void BeginCopies();
  void AwaitPrefixCopy();
  void CancelLoad(BlockId id);
  void CancelStore(BlockId id);
  bool CancelMove(const std::pair<const MoveId, Move>& move);
  bool BeginSpill(BlockId id, const DepartureRef& departure);
  bool BeginDemotion(BlockId id, const DepartureRef& departure);
  bool BeginCopyBelow(BlockId id);
  std::vector<BlockId> MakingRoom() const;
  double PriceOfLoss(std::span<const BlockId> leaving, uint32_t count) const;
  void KeepFromLeaving(std::span<const BlockId> leaving, uint32_t count);
  bool Leave(BlockId id, const DepartureRef& departure);
  bool LeaveForHost(BlockId id, const DepartureRef& departure);
  bool LeaveForDisk(BlockId id, const DepartureRef& departure);
  void DepartAll(const std::vector<BlockId>& ids, Tier tier, std::function<void()> done);
  void RetryLeaving();
  void TellArrived();
  void EmptyMemory(BlockId id);
  void EndLoad(MoveId id, const Move& move, const Status& status, bool record_is_good);
  void EndStore(MoveId id, const Move& move, RecordId record);
  void EndDiskMove(const DiskTier::Outcome& outcome);
  void EndDemotion(MoveId id, const Move& move, const Status& status);
  void LoseLoad(MoveId id, const Move& move);
  void ForgetRecord(BlockId id);
  void Relocate(const DiskTier::Relocation& relocation);
  void RetireIfDue();

  const OffloadConfig config_;
  const KvLayout layout_;
  const Clock& clock_;
  const bool host_in_place_;
  const bool host_addressable_;  // the device's memory
  SlotPool device_pool_;
  std::optional<SlotPool> host_pool_;
  PrefixIndex index_;
  std::deque<std::optional<BlockMeta>> blocks_;               // by BlockId
  std::unordered_map<BlockId, std::vector<uint32_t>> tails_;  // tokens of those that are parked
  std::vector<BlockId> free_ids_;
  std::vector<Victim> victims_;  // ranked, the next one last
  std::array<uint32_t, static_cast<size_t>(Standing::kCount)> tally_{};
  uint32_t in_flight_count_ = 0;  // resident slots that loads write
  uint64_t use_order_ = 0, seal_order_ = 0;
  BlockStoreStats counts_;  // the counters; stats() adds the gauges

  // On disk, and not asked for since the start.
  std::unordered_map<BlockKey, RecordId> found_;
  std::unordered_map<RecordId, BlockKey> found_keys_;
  std::optional<DiskTier> disk_;
  StagedSpillStore* const staging_;  // of disk_; null: the disk reads and writes blocks in place
  uint64_t next_move_ = 0;
  std::map<MoveId, Move> moves_;   // to and from the disk
  std::map<MoveId, Move> copies_;  // between the pools
  FlowMeter host_meter_;           // of those to the device
  std::vector<Leaving> leaving_;
  std::vector<DepartureRef> departures_;  // those whose `done` is still to be called
  std::optional<RecomputePrice> recompute_price_;
  ReuseOdds reuse_odds_;
  IdleWatch idle_watch_;
  uint32_t first_worth_writing_ = 0;  // blocks before this position are not
  double loading_share_ = 0;          // of the time in which the disk loads
  Clock::Monotonic last_write_back_;
  uint64_t written_back_ = 0;  // the use_order_ up to which WriteBack has nothing to do
  EventRef prefix_copy_;       // the latest: slots that it uses may have been given back
  std::unique_ptr<CopyQueue> copy_queue_;  // first to go: it may still copy
};

}  // namespace cairn
