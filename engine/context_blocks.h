// The blocks of one running sequence: which positions have their K and V in place, which are still
// to be computed, and the addresses that the model reads and writes.
//
// Positions are computed in increasing order, but what is missing may have holes in it: eviction
// drops early blocks first, and a block that is there is used wherever it stands. A block is
// sealed, and so shared, as soon as its last position is written.
//
// Of the blocks that lie further down some are loaded and the others are computed again, as a plan
// says (offload/restore_plan.h). Both go on at once: a position may be computed as soon as every
// block before it is in place. What could not be loaded counts as missing when Settle finds out,
// and Follow has what is left follow another plan.
//
// Where the plan is Wave, blocks from the host pool arrive together, layer by layer, and nothing is
// computed before the pass that does it all: whoever runs it says when it begins (SetReach). From
// then on blocks that are still arriving count as being there; the pass waits for each layer of
// them.
//
// (1) While it lives, every block it knows is held.
// (2) Every block before first_missing_block_ is sealed, or will be when its load is over.
// Threads: the engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/restore_report.h"
#include "kernels/device.h"
#include "offload/block_store.h"
#include "offload/restore_plan.h"

namespace cairn {

// Positions begin .. begin + count.
struct PositionRange {
  uint32_t begin = 0;
  uint32_t count = 0;
};

class ContextBlocks {
 public:
  // Which missing positions may be computed, while something is loading.
  enum class Reach : uint8_t {
    kFront,  // those before the first block that is loading
    kNowhere,
    kBehindArrivals,  // all: what is loading arrives layer by layer
  };

  // Makes the plan for the full blocks of a context from what it takes to use each.
  using Planner = std::function<RestorePlan(std::span<const Origin> blocks)>;

  // Takes everything that `tokens` need at once: blocks that are there, slots for those that the
  // plan loads, copies of the beginnings of blocks, and fresh ones for the rest and for the next
  // position. Nothing taken, and kResourceExhausted when the pool is short; kUnavailable when it is
  // worth waiting for blocks that are on their way out of it, as it has `waited` for already.
  static Result<std::unique_ptr<ContextBlocks>> Acquire(BlockStore& store, const BlockKey& root,
                                                        std::span<const uint32_t> tokens,
                                                        uint32_t priority, Stream& stream,
                                                        const Planner& planner,
                                                        Clock::Monotonic::duration waited = {});

  // Blocks that `token_count` tokens and the next position take, resident or not.
  static uint32_t BlocksFor(size_t token_count, uint32_t block_tokens) {
    return static_cast<uint32_t>(token_count / block_tokens + 1);
  }

  // Whether something is still on its way; what has come is in place from `now` on.
  // kResourceExhausted when a block could not be loaded and there is no slot to compute it in.
  Result<bool> Settle(Clock::Monotonic now);
  bool is_loading() const { return loading_count_ > 0; }
  size_t loading_count() const { return loading_count_; }
  uint32_t turn() const { return turn_; }    // of its latest plan
  bool is_wave() const { return is_wave_; }  // the same
  void SetReach(Reach reach);                // until the next call; at first kFront
  bool reaches_behind_arrivals() const { return reach_ == Reach::kBehindArrivals; }
  // Its latest plan has the next pass wait for more than is there.
  bool awaits_pass() const {
    return first_missing_block_ < first_pass_end_ && FirstLoadingBlock() < first_pass_end_;
  }
  // What brings, layer by layer, every block that is still loading; null when some come whole, or
  // nothing is loading.
  CopyRef Arrival() const;
  // What it takes now to use each full block: what is being computed counts as absent, what is
  // being loaded as where it comes from, but as resident if it arrives by layer, because that is
  // not to be had any sooner. `tokens` as for Written.
  std::vector<Origin> Origins(std::span<const uint32_t> tokens);
  // Of the blocks, those that are being loaded from there, and do not arrive by layer.
  uint32_t LoadingFrom(Tier tier) const;
  // Has blocks that are neither in place nor begun follow a new plan: loads that it does not want
  // are given up, and others begin. kResourceExhausted as Settle. `tokens` as for Written.
  Status Follow(std::span<const uint32_t> tokens, const RestorePlan& plan);
  // Tokens in whole blocks that were found, by the tier where they lay; less those that got lost on
  // the way.
  struct Found {
    int64_t host_tokens = 0;
    int64_t disk_tokens = 0;
  };
  const Found& found() const { return found_; }
  // How block `block` came to be in place, or will.
  BlockFate FateOf(size_t block) const;
  // Since when block `block` is in place; of one that was loaded or computed here.
  Clock::Monotonic InPlaceSince(size_t block) const { return entries_[block].in_place; }

  // Of the first `token_count` positions, how many are still to be computed.
  uint32_t missing_count(size_t token_count) const;
  // Of these, how many may be computed now: those within reach.
  uint32_t computable_count(size_t token_count) const;
  // The first `row_max` of them below `token_count`, as runs in increasing order: one run, or
  // several when there are holes. All of them may be computed in one pass.
  std::vector<PositionRange> MissingRuns(size_t token_count, uint32_t row_max) const;
  // The same of all that are missing, computable or not.
  std::vector<PositionRange> AllMissingRuns(size_t token_count, uint32_t row_max) const;
  // The model has written `run`; call it for the runs of MissingRuns in their order. `tokens`: of
  // the whole context.
  void Written(PositionRange run, std::span<const uint32_t> tokens, Clock::Monotonic now);

  // Room for the position `position`, the one after the last. kResourceExhausted when the pool is
  // short.
  Status Extend(uint32_t position);

  // Positions in sealed blocks that lie in the host pool.
  int64_t host_token_count() const;

  std::byte* const* addresses() const { return addresses_.data(); }

  // Ends the use: parks the tail for the next turn and drops every hold. `tokens` as for Written.
  void Release(std::span<const uint32_t> tokens);

  // Moves the holds of sealed blocks out, for a pinned session; Release comes next.
  std::vector<Hold> CloneSealed() const;

 private:
  struct Entry {
    Hold hold;
    uint32_t filled = 0;  // positions in place, from the block's first
    bool sealed = false;
    bool loading = false;  // sealed, but on its way
    CopyRef arrival;       // of one that is loading layer by layer
    bool was_loading = false;
    bool failed = false;        // its load
    Tier tier = Tier::kAbsent;  // where it was found
    Clock::Monotonic in_place;
  };

  ContextBlocks(BlockStore& store, const BlockKey& root, uint32_t priority);
  const BlockKey& ParentKey(size_t block) const;
  std::byte* AddressOf(const Entry& entry) const;
  void Append(Entry entry);
  void SkipSealed();
  size_t FirstLoadingBlock() const;
  size_t ReachEnd() const;
  std::vector<PositionRange> MissingRuns(size_t token_count, uint32_t row_max,
                                         size_t block_end) const;
  Status GiveUpLoad(size_t block, std::span<const uint32_t> tokens);
  void BecomeMissing(size_t block, Hold fresh);
  void BecomeLoading(size_t block, Hold hold);
  void ChangeTurn(uint32_t turn);
  void ReorderLoads(const std::vector<uint32_t>& loads);
  int64_t* FoundTokens(Tier tier);

  BlockStore& store_;
  const BlockKey root_;
  const uint32_t priority_;
  const uint32_t block_tokens_;
  std::vector<Entry> entries_;
  std::vector<std::byte*> addresses_;  // of entries_
  size_t first_missing_block_ = 0;
  size_t filled_count_ = 0;  // positions in place over all entries
  size_t loading_count_ = 0;
  uint32_t turn_ = 0;          // of its loads
  size_t first_pass_end_ = 0;  // of the latest plan: see RestorePlan
  bool is_wave_ = false;
  Reach reach_ = Reach::kFront;
  Found found_;
};

}  // namespace cairn
