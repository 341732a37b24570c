// What blocks are worth at today's prices, and so which of them make room, are written down ahead
// of need, and keep a place in the host pool.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "offload/block_change.h"
#include "offload/block_store.h"

namespace cairn {
namespace {

// One ranking serves this share of the pool's evictions: a full ranking is O(blocks), and ranks
// change slowly. The ranked blocks are evicted one by one, as slots are needed, not all at once.
constexpr uint32_t kRankedShare = 64;
// Of the slots, the share whose blocks are next to go and are kept such that nothing is lost then.
constexpr uint32_t kLosslessShare = 4;
constexpr std::chrono::milliseconds kWriteBackInterval{20};
constexpr uint32_t kWriteBackMax = 32;         // blocks at a time
constexpr uint32_t kWriteProbe = 8;            // blocks: enough to tell that a disk has changed
constexpr double kLoadingWindow = 1024;        // looks at the disk, of 20 ms or more
constexpr double kLoadingShareMin = 1.0 / 16;  // no write is free: a disk wears out
// Of a reused block under EvictionPolicy::kFixed.
constexpr double kFixedOdds = 32;

}  // namespace

PredictionHistogram BlockStore::LoadPredictions(Tier tier) const {
  if (tier == Tier::kHost) return host_meter_.predictions();
  return tier == Tier::kDisk && disk_ ? disk_->load_predictions() : PredictionHistogram();
}

BlockPrices BlockStore::PricesNow() const {
  BlockPrices prices;
  if (config_.eviction != EvictionPolicy::kPrices) return prices;
  prices.recompute = recompute_price_;
  if (const double host_s = host_flow().block_s; host_s > 0) prices.host_s = host_s;
  if (const double disk_s = disk_flow().block_s; disk_s > 0) prices.disk_s = disk_s;
  if (disk_) prices.write_s = disk_->write_s();
  return prices;
}

// From where the block would come back if it left the slot where it is resident.
Origin BlockStore::NextCopyOf(const BlockMeta& meta) const {
  if (!host_in_place_ && meta.host.valid()) return Origin::kHost;
  return meta.record.valid() && disk_->TakesLoads() ? Origin::kDisk : Origin::kAbsent;
}

double BlockStore::ReturnRateOf(const BlockMeta& meta, Clock::Monotonic now) const {
  const std::chrono::nanoseconds idle = now - meta.last_use;
  if (config_.eviction == EvictionPolicy::kPrices) {
    return idle_watch_.rates().PerSecond(meta.reuse_count, idle);
  }
  const std::chrono::duration<double> seconds = std::max<std::chrono::nanoseconds>(idle, kIdleMin);
  return (meta.reuse_count > 0 ? kFixedOdds : 1) / seconds.count();
}

EvictionCandidate BlockStore::CandidateOf(BlockId id, double cost_s, Clock::Monotonic now) const {
  const BlockMeta& meta = At(id);
  return {.block = id,
          .cost_s = cost_s,
          .priority = meta.priority,
          .reuse_count = meta.reuse_count,
          .return_rate = ReturnRateOf(meta, now),
          .use_order = meta.use_order,
          .seal_order = meta.seal_order};
}

// Every block that has a slot where the model can attend to it. What lies further down, which is
// most, is not looked at.
template <class See>
void BlockStore::ForEachResident(See see) const {
  const auto see_all = [&](const SlotPool& pool) {
    for (const BlockId id : pool.owners()) {
      if (id.valid()) see(id, At(id));
    }
  };
  see_all(device_pool_);
  if (host_in_place_ && host_pool_) see_all(*host_pool_);
}

// The `count` evictable blocks of least worth, least first; perhaps as if each had the copy further
// down that it pays to make.
std::vector<BlockId> BlockStore::RankIdle(uint32_t count, Idle kind, bool as_if_written) const {
  const Clock::Monotonic now = clock_.Now();
  const BlockPrices prices = PricesNow();
  const Origin written = can_demote() ? Origin::kHost : Origin::kDisk;
  std::vector<EvictionCandidate> view;
  ForEachResident([&](BlockId id, const BlockMeta& meta) {
    const Standing standing = StandingOf(meta);
    const bool is_wanted = (IsLossless(standing) && kind != Idle::kDirty) ||
                           (standing == Standing::kDirty && kind != Idle::kLossless);
    if (!is_wanted) return;
    const Origin next = as_if_written && standing == Standing::kDirty ? written : NextCopyOf(meta);
    double cost_s = prices.BringBack(next, meta.first_position);
    if (meta.token_count < layout_.block_tokens) cost_s *= meta.token_count / tokens_of_a_block();
    view.push_back(CandidateOf(id, cost_s, now));
  });
  return PickVictims(view, count, config_.eviction);
}

// Evicts `need` blocks; there are so many evictable ones. Those that lose nothing go before all
// others: a block that is worth writing down is not lost before WriteBack or AwaitsRoom had the
// time to see to it.
void BlockStore::MakeRoom(uint32_t need) {
  CHECK(need <= evictable_count());
  while (need > 0) {
    if (victims_.empty()) {
      const uint32_t count = std::max(need, stats().capacity / kRankedShare);
      const Idle kind = has_lower_tier() && lossless_count() > 0 ? Idle::kLossless : Idle::kAll;
      for (const BlockId id : RankIdle(count, kind)) victims_.push_back({id, At(id).use_order});
      std::ranges::reverse(victims_);
    }
    const Victim victim = victims_.back();
    victims_.pop_back();
    const std::optional<BlockMeta>& meta = blocks_[victim.block.value()];
    const bool still_idle = meta && meta->use_order == victim.use_order;
    if (!still_idle || !IsEvictable(StandingOf(*meta))) continue;
    Evict(victim.block);
    --need;
  }
}

// Copies in the host pool that may go. With kLossless those that lose nothing worth writing, with
// kDirty the others: they are the only copy, and the disk may take one. What a copy in the host
// pool saves is the way from the disk, or computing, less the way from the host. (A copy that is
// the reason why its block may leave the device stays: taking it would only move the need from one
// block to the other.)
std::vector<EvictionCandidate> BlockStore::HostCopies(Idle kind, Clock::Monotonic now) const {
  const BlockPrices prices = PricesNow();
  std::vector<EvictionCandidate> view;
  for (const BlockId id : host_pool_->owners()) {
    if (!id.valid()) continue;
    const BlockMeta& meta = At(id);
    const bool is_used = meta.store.valid() || meta.load.valid();
    if (meta.state == BlockState::kFilling || is_used) continue;
    const bool is_only_host = meta.hold_count == 0 && !meta.device.valid();
    const bool is_spare = meta.hold_count > 0 && meta.device.valid();  // a copy's time, at most
    if (!is_only_host && !is_spare) continue;
    const bool is_dirty = is_only_host && disk_ && !meta.record.valid() && !IsTail(meta) &&
                          meta.first_position >= first_worth_writing_;
    if (is_dirty != (kind == Idle::kDirty)) continue;
    view.push_back(CandidateOf(id, is_spare ? 0 : HostCopySaves(prices, meta), now));
  }
  return view;
}

double BlockStore::HostCopySaves(const BlockPrices& prices, const BlockMeta& meta) const {
  const bool on_disk = meta.record.valid() && disk_->TakesLoads();
  const double without =
      prices.BringBack(on_disk ? Origin::kDisk : Origin::kAbsent, meta.first_position);
  const double with = host_in_place_ ? 0 : prices.BringBack(Origin::kHost, meta.first_position);
  return (without - with) * meta.token_count / tokens_of_a_block();
}

// A free slot in the host pool for a block that comes from the device, if there is one or a block
// that is worth less there can leave its own.
bool BlockStore::MakeHostRoom(BlockId incoming) {
  if (!host_pool_) return false;
  if (host_pool_->free_count() > 0) return true;
  const Clock::Monotonic now = clock_.Now();
  std::vector<EvictionCandidate> view = HostCopies(Idle::kLossless, now);
  view.push_back(CandidateOf(incoming, HostCopySaves(PricesNow(), At(incoming)), now));
  const BlockId victim = PickVictims(view, 1, config_.eviction).front();
  if (victim == incoming) return false;
  BlockMeta& meta = At(victim);
  {
    const Change change(*this, meta);
    host_pool_->Give(std::exchange(meta.host, SlotId()));
  }
  ++counts_.evictions;
  ++counts_.host_evictions;
  counts_.losses += IsAbsent(meta);
  FreeIfGone(victim);
  return true;
}

// Which blocks it pays to write is decided anew.
void BlockStore::WeighWriting() {
  if (!disk_) return;
  const uint32_t first = disk_->is_answering() ? PricesNow().FirstWorthWriting()
                                               : std::numeric_limits<uint32_t>::max();
  if (first == first_worth_writing_) return;
  first_worth_writing_ = first;
  written_back_ = 0;
  const uint32_t cold = Count(Standing::kCold);  // these stay what they are
  tally_.fill(0);
  Tally(Standing::kCold) = cold;
  ForEachResident([&](BlockId, const BlockMeta& meta) { ++Tally(StandingOf(meta)); });
}

void BlockStore::WriteBack() {
  const Clock::Monotonic now = clock_.Now();
  if (now - last_write_back_ < kWriteBackInterval) return;
  last_write_back_ = now;
  idle_watch_.Look(now, reuse_odds_);
  if (!has_lower_tier()) return;
  loading_share_ += ((disk_flow().under_way > 0) - loading_share_) / kLoadingWindow;
  WeighWriting();
  WriteDownHost();
  const uint32_t wanted = stats().capacity / kLosslessShare + 1;
  const uint32_t coming = free_count() + Count(Standing::kBusy);
  if (coming >= wanted) return;
  if (disk_ && Count(Standing::kDirty) == 0 && disk_->write_is_due()) ProbeWriting();
  const bool any_unwritten = Count(Standing::kDirty) + Count(Standing::kCheap) > 0;
  if (!any_unwritten || written_back_ == use_order_) return;
  const BlockPrices prices = PricesNow();
  uint32_t tries = 0;
  for (const BlockId id : RankIdle(wanted - coming, Idle::kAll, true)) {
    const Standing standing = StandingOf(At(id));
    if (standing == Standing::kClean) continue;
    if (standing == Standing::kCheap && !PaysWhileIdle(prices, At(id))) continue;
    BeginCopyBelow(id);
    if (++tries == kWriteBackMax) break;
  }
  if (tries == 0) written_back_ = use_order_;
}

// Nobody waits for the disk to write a block that is computed in less time. While nobody wants
// anything of it, its time is cheap: what is written then delays a load as often as there are any.
bool BlockStore::PaysWhileIdle(const BlockPrices& prices, const BlockMeta& meta) const {
  if (!disk_ || disk_flow().under_way > 0) return false;
  const double saved_s = prices.BringBack(Origin::kAbsent, meta.first_position) -
                         prices.BringBack(Origin::kDisk, meta.first_position);
  return reuse_odds_.Chance(meta.reuse_count) * saved_s >
         prices.write_s * std::max(loading_share_, kLoadingShareMin);
}

// A disk that is too slow to be written to is tried now and then, so that it is noticed when it is
// not any more.
void BlockStore::ProbeWriting() {
  uint32_t begun = 0;
  for (const BlockId id : RankIdle(evictable_count(), Idle::kLossless)) {
    if (begun == kWriteProbe) return;
    if (StandingOf(At(id)) == Standing::kCheap) begun += BeginSpill(id, nullptr);
  }
}

// Where blocks are used on the device alone, those in the host pool are written down too, so that
// they can make room for what is worth more there.
void BlockStore::WriteDownHost() {
  if (!can_demote() || !disk_) return;
  const uint32_t wanted = host_pool_->capacity() / kLosslessShare + 1;
  if (host_pool_->free_count() >= wanted) return;
  const Clock::Monotonic now = clock_.Now();
  const auto lossless = static_cast<uint32_t>(HostCopies(Idle::kLossless, now).size());
  if (host_pool_->free_count() + lossless >= wanted) return;
  const uint32_t count = std::min(wanted - host_pool_->free_count() - lossless, kWriteBackMax);
  for (const BlockId id : PickVictims(HostCopies(Idle::kDirty, now), count, config_.eviction)) {
    BeginSpill(id, nullptr);
  }
}

}  // namespace cairn
