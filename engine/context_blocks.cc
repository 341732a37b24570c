#include "engine/context_blocks.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace cairn {

namespace {

// The blocks that a plan loads, in its order.
std::vector<uint32_t> LoadsOf(const RestorePlan& plan) {
  std::vector<uint32_t> loads;
  for (const std::vector<uint32_t>& channel : plan.load_order) {
    loads.insert(loads.end(), channel.begin(), channel.end());
  }
  return loads;
}

}  // namespace

ContextBlocks::ContextBlocks(BlockStore& store, const BlockKey& root, uint32_t priority)
    : store_(store), root_(root), priority_(priority), block_tokens_(store.layout().block_tokens) {}

Result<std::unique_ptr<ContextBlocks>> ContextBlocks::Acquire(
    BlockStore& store, const BlockKey& root, std::span<const uint32_t> tokens, uint32_t priority,
    Stream& stream, const Planner& planner, Clock::Monotonic::duration waited) {
  std::unique_ptr<ContextBlocks> context(new ContextBlocks(store, root, priority));
  const uint32_t block_tokens = context->block_tokens_;
  const uint32_t block_count = BlocksFor(tokens.size(), block_tokens);
  // Asked first, because a context that waits is tried again in every step: only the try that
  // succeeds is a use of what it finds.
  BlockNeed need = store.NeedOf(root, tokens, block_count);
  if (need.missing > need.lossless) {
    if (store.AwaitsRoom(need.missing - need.lossless, waited)) {
      return Unavailable("the context waits for blocks to be written further down");
    }
    need = store.NeedOf(root, tokens, block_count);  // what was on its way may have been given up
  }
  if (need.missing > need.available) {
    return ResourceExhausted("the context needs " + std::to_string(need.missing) +
                             " more blocks; the pool has " + std::to_string(need.available) +
                             " to give");
  }
  const RestorePlan plan = planner(store.Survey(root, tokens));
  context->turn_ = plan.turn;
  context->first_pass_end_ = plan.first_pass_end;
  context->is_wave_ = plan.execution == Execution::kWave;
  std::vector<Hold> found =
      store.Match(root, tokens, priority, LoadsOf(plan), plan.turn, context->is_wave_);
  found.resize(block_count);
  auto missing =
      static_cast<uint32_t>(std::ranges::count_if(found, [](const Hold& hold) { return !hold; }));
  // The beginnings of missing blocks that follow a block in place: forks, rewinds, parked tails.
  std::vector<uint32_t> copied(block_count, 0);
  for (size_t i = 0; i < block_count; ++i) {
    const bool parent_in_place = i == 0 || (found[i - 1] && copied[i - 1] == 0);
    if (found[i] || !parent_in_place) continue;
    const size_t begin = i * block_tokens;
    const auto rest = tokens.subspan(begin, std::min<size_t>(block_tokens, tokens.size() - begin));
    if (rest.empty()) continue;
    const BlockKey parent = i == 0 ? root : found[i - 1].key();
    if (std::optional<PartialBlock> part = store.CopyPrefix(parent, rest, stream)) {
      found[i] = std::move(part->block);
      copied[i] = part->token_count;
      --missing;
    }
  }
  ASSIGN_OR_RETURN(std::vector<Hold> fresh, store.Reserve(missing));
  size_t next_fresh = 0;
  for (size_t i = 0; i < block_count; ++i) {
    if (!found[i]) {
      context->Append({.hold = std::move(fresh[next_fresh++])});
      continue;
    }
    stream.Wait(found[i].ready());
    const bool whole = copied[i] == 0;
    const bool loading = !found[i].is_ready();
    const Tier tier = whole ? found[i].tier() : Tier::kAbsent;
    CopyRef arrival = loading ? found[i].arrival() : nullptr;
    context->Append({.hold = std::move(found[i]),
                     .filled = whole ? block_tokens : copied[i],
                     .sealed = whole,
                     .loading = loading,
                     .arrival = std::move(arrival),
                     .was_loading = loading,
                     .tier = tier});
  }
  return context;
}

Result<bool> ContextBlocks::Settle(Clock::Monotonic now) {
  for (size_t block = 0; block < entries_.size() && loading_count_ > 0; ++block) {
    Entry& entry = entries_[block];
    if (!entry.loading || entry.hold.is_loading()) continue;
    if (entry.hold.is_lost()) {
      ASSIGN_OR_RETURN(std::vector<Hold> fresh, store_.Reserve(1));
      BecomeMissing(block, std::move(fresh[0]));
      entry.failed = true;
      continue;
    }
    entry.loading = false;
    entry.arrival = nullptr;
    entry.in_place = now;
    addresses_[block] = AddressOf(entry);
    --loading_count_;
  }
  return loading_count_ > 0;
}

std::vector<Origin> ContextBlocks::Origins(std::span<const uint32_t> tokens) {
  std::vector<Origin> origins = store_.Survey(root_, tokens);
  for (size_t block = 0; block < origins.size(); ++block) {
    const Entry& entry = entries_[block];
    if (entry.sealed && (!entry.loading || entry.arrival != nullptr)) {
      origins[block] = Origin::kResident;
    } else if (entry.loading) {
      origins[block] = entry.tier == Tier::kHost ? Origin::kHost : Origin::kDisk;
    } else if (entry.filled > 0) {
      origins[block] = Origin::kAbsent;  // begun
    }
  }
  return origins;
}

uint32_t ContextBlocks::LoadingFrom(Tier tier) const {
  return static_cast<uint32_t>(std::ranges::count_if(entries_, [&](const Entry& entry) {
    return entry.loading && entry.arrival == nullptr && entry.tier == tier;
  }));
}

CopyRef ContextBlocks::Arrival() const {
  if (loading_count_ == 0) return nullptr;
  CopyRef arrival;
  for (const Entry& entry : entries_) {
    if (!entry.loading) continue;
    if (entry.arrival == nullptr || (arrival != nullptr && entry.arrival != arrival)) {
      return nullptr;
    }
    arrival = entry.arrival;
  }
  return arrival;
}

void ContextBlocks::SetReach(Reach reach) {
  reach_ = reach;
  if (reach != Reach::kBehindArrivals) return;
  for (size_t block = 0; block < entries_.size(); ++block) {
    if (!entries_[block].loading) continue;
    addresses_[block] = const_cast<std::byte*>(entries_[block].hold.arrival_address());
  }
}

Status ContextBlocks::Follow(std::span<const uint32_t> tokens, const RestorePlan& plan) {
  for (size_t block = 0; block < plan.verdicts.size(); ++block) {
    const bool is_given_up = entries_[block].loading && plan.verdicts[block] == Verdict::kRecompute;
    if (is_given_up) RETURN_IF_ERROR(GiveUpLoad(block, tokens));
  }
  ChangeTurn(plan.turn);
  first_pass_end_ = plan.first_pass_end;
  is_wave_ = plan.execution == Execution::kWave;
  const std::vector<uint32_t> loads = LoadsOf(plan);
  bool is_any_added = false, steps_ahead = false;
  for (const uint32_t block : loads) {
    const Entry& entry = entries_[block];
    steps_ahead |= entry.loading && is_any_added;
    if (entry.sealed || entry.filled > 0) continue;
    Hold hold = store_.MatchOne(root_, tokens, block, priority_, turn_);
    if (!hold) continue;
    BecomeLoading(block, std::move(hold));
    is_any_added = true;
  }
  if (steps_ahead) ReorderLoads(loads);
  return Status();
}

// A load that was added ahead of others would come behind them, and what is computed behind its
// block would wait for all of them.
void ContextBlocks::ReorderLoads(const std::vector<uint32_t>& loads) {
  std::vector<BlockId> ids;
  for (const uint32_t block : loads) {
    if (entries_[block].loading) ids.push_back(entries_[block].hold.id());
  }
  store_.Reorder(ids);
}

// Drops the hold, which ends a load that has not begun; one that has goes on for nobody. Its slot
// may be the only one there is: if none can be had, the block is loaded after all.
Status ContextBlocks::GiveUpLoad(size_t block, std::span<const uint32_t> tokens) {
  Entry& entry = entries_[block];
  entry.hold.Release();
  Result<std::vector<Hold>> fresh = store_.Reserve(1);
  if (!fresh.ok()) entry.hold = store_.MatchOne(root_, tokens, block, priority_, turn_);
  if (entry.hold) return Status();
  BecomeMissing(block, fresh.ok() ? std::move(fresh->front()) : Hold());
  return fresh.status();
}

// What others have asked for sooner stays where it is.
void ContextBlocks::ChangeTurn(uint32_t turn) {
  if (turn == turn_) return;
  for (const Entry& entry : entries_) {
    if (entry.loading) store_.ChangeTurn(entry.hold.id(), turn_, turn);
  }
  turn_ = turn;
}

// A block that was to be loaded is computed instead.
void ContextBlocks::BecomeMissing(size_t block, Hold fresh) {
  Entry& entry = entries_[block];
  CHECK(entry.loading);
  if (int64_t* tokens = FoundTokens(entry.tier)) *tokens -= block_tokens_;
  filled_count_ -= entry.filled;
  --loading_count_;
  entry = {.hold = std::move(fresh)};
  addresses_[block] = entry.hold ? AddressOf(entry) : nullptr;
  first_missing_block_ = std::min(first_missing_block_, block);
}

// A block that was to be computed is loaded instead, or has come by other means.
void ContextBlocks::BecomeLoading(size_t block, Hold hold) {
  Entry& entry = entries_[block];
  CHECK(!entry.sealed && entry.filled == 0);
  const bool loading = !hold.is_ready();
  const Tier tier = hold.tier();
  entry = {.hold = std::move(hold),
           .filled = block_tokens_,
           .sealed = true,
           .loading = loading,
           .was_loading = loading,
           .tier = tier};
  addresses_[block] = loading ? nullptr : AddressOf(entry);
  filled_count_ += block_tokens_;
  loading_count_ += loading;
  if (int64_t* tokens = FoundTokens(tier)) *tokens += block_tokens_;
  SkipSealed();
}

int64_t ContextBlocks::host_token_count() const {
  const auto count = std::ranges::count_if(entries_, [](const Entry& entry) {
    return entry.sealed && entry.hold.tier() == Tier::kHost;
  });
  return static_cast<int64_t>(count) * block_tokens_;
}

BlockFate ContextBlocks::FateOf(size_t block) const {
  const Entry& entry = entries_[block];
  if (entry.failed) return BlockFate::kReloadFailed;
  if (entry.tier == Tier::kAbsent) return BlockFate::kRecomputed;
  return entry.was_loading ? BlockFate::kReloaded : BlockFate::kKept;
}

int64_t* ContextBlocks::FoundTokens(Tier tier) {
  if (tier == Tier::kHost) return &found_.host_tokens;
  return tier == Tier::kDisk ? &found_.disk_tokens : nullptr;
}

void ContextBlocks::Append(Entry entry) {
  addresses_.push_back(entry.loading ? nullptr : AddressOf(entry));
  filled_count_ += entry.filled;
  loading_count_ += entry.loading;
  if (int64_t* tokens = FoundTokens(entry.tier)) *tokens += block_tokens_;
  entries_.push_back(std::move(entry));
  SkipSealed();
}

void ContextBlocks::SkipSealed() {
  while (first_missing_block_ < entries_.size() && entries_[first_missing_block_].sealed) {
    ++first_missing_block_;
  }
}

size_t ContextBlocks::FirstLoadingBlock() const {
  if (loading_count_ == 0) return entries_.size();
  const auto first = std::ranges::find_if(entries_, &Entry::loading);
  return static_cast<size_t>(first - entries_.begin());
}

// The model writes only to blocks that are not sealed; the one table serves reading and writing.
std::byte* ContextBlocks::AddressOf(const Entry& entry) const {
  return entry.sealed ? const_cast<std::byte*>(entry.hold.address())
                      : entry.hold.writable_address();
}

const BlockKey& ContextBlocks::ParentKey(size_t block) const {
  return block == 0 ? root_ : entries_[block - 1].hold.key();
}

uint32_t ContextBlocks::missing_count(size_t token_count) const {
  CHECK(token_count >= filled_count_);
  return static_cast<uint32_t>(token_count - filled_count_);
}

uint32_t ContextBlocks::computable_count(size_t token_count) const {
  if (loading_count_ == 0) return missing_count(token_count);
  uint32_t count = 0;
  for (const PositionRange& run : MissingRuns(token_count, UINT32_MAX)) count += run.count;
  return count;
}

std::vector<PositionRange> ContextBlocks::MissingRuns(size_t token_count, uint32_t row_max) const {
  return MissingRuns(token_count, row_max, ReachEnd());
}

size_t ContextBlocks::ReachEnd() const {
  if (loading_count_ == 0 || reach_ == Reach::kBehindArrivals) return entries_.size();
  return reach_ == Reach::kNowhere ? 0 : FirstLoadingBlock();
}

std::vector<PositionRange> ContextBlocks::AllMissingRuns(size_t token_count,
                                                         uint32_t row_max) const {
  return MissingRuns(token_count, row_max, entries_.size());
}

std::vector<PositionRange> ContextBlocks::MissingRuns(size_t token_count, uint32_t row_max,
                                                      size_t block_end) const {
  std::vector<PositionRange> runs;
  uint32_t row_count = 0;
  for (size_t block = first_missing_block_; block < block_end && row_count < row_max; ++block) {
    const size_t begin = block * block_tokens_ + entries_[block].filled;
    const size_t end = std::min<size_t>((block + 1) * block_tokens_, token_count);
    if (begin >= end) continue;
    const uint32_t count = std::min(static_cast<uint32_t>(end - begin), row_max - row_count);
    row_count += count;
    if (!runs.empty() && runs.back().begin + runs.back().count == begin) {
      runs.back().count += count;
    } else {
      runs.push_back({static_cast<uint32_t>(begin), count});
    }
  }
  return runs;
}

void ContextBlocks::Written(PositionRange run, std::span<const uint32_t> tokens,
                            Clock::Monotonic now) {
  CHECK(run.begin + run.count <= tokens.size());
  filled_count_ += run.count;
  for (uint32_t left = run.count; left > 0;) {
    const size_t block = first_missing_block_;
    Entry& entry = entries_[block];
    const uint32_t taken = std::min(left, block_tokens_ - entry.filled);
    CHECK(run.begin + (run.count - left) == block * block_tokens_ + entry.filled);
    entry.filled += taken;
    left -= taken;
    if (entry.filled < block_tokens_) break;
    entry.hold = store_.Seal(std::move(entry.hold), ParentKey(block),
                             tokens.subspan(block * block_tokens_, block_tokens_), priority_);
    entry.sealed = true;
    entry.in_place = now;
    addresses_[block] = AddressOf(entry);
    SkipSealed();
  }
}

Status ContextBlocks::Extend(uint32_t position) {
  const size_t block = position / block_tokens_;
  if (block < entries_.size()) return Status();
  CHECK(block == entries_.size());
  ASSIGN_OR_RETURN(std::vector<Hold> fresh, store_.Reserve(1));
  Append({.hold = std::move(fresh[0])});
  return Status();
}

void ContextBlocks::Release(std::span<const uint32_t> tokens) {
  const size_t block = first_missing_block_;
  if (block < entries_.size() && entries_[block].filled > 0) {
    Entry& entry = entries_[block];
    store_.Park(std::move(entry.hold), ParentKey(block),
                tokens.subspan(block * block_tokens_, entry.filled), priority_);
  }
  entries_.clear();
  addresses_.clear();
  loading_count_ = 0;
}

std::vector<Hold> ContextBlocks::CloneSealed() const {
  std::vector<Hold> holds;
  for (const Entry& entry : entries_) {
    if (entry.sealed && !entry.loading) holds.push_back(entry.hold.Clone());
  }
  return holds;
}

}  // namespace cairn
