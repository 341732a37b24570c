// Moves of blocks between the tiers: how they begin, and what becomes of them.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "offload/block_change.h"
#include "offload/block_store.h"

namespace cairn {
namespace {

// How long room is waited for, over what computing again what would be lost takes; and seconds at
// least, since a disk takes a breath now and then.
constexpr double kRoomPatience = 8;
constexpr double kRoomWaitMin = 1;

}  // namespace

bool BlockStore::CanLoad(const BlockMeta& meta) const {
  if (meta.load.valid() || IsResident(meta)) return false;
  return meta.host.valid() || (meta.record.valid() && disk_->TakesLoads());
}

// Into a free slot, or one that can be had.
bool BlockStore::BeginLoad(BlockId id, uint32_t turn, bool by_layer) {
  BlockMeta& meta = At(id);
  if (!CanLoad(meta)) return false;
  if (free_count() == 0) {
    if (evictable_count() == 0) return false;
    MakeRoom(1);
  }
  const Place target = TakeSlot(Tier::kHost);
  const MoveId move = NextMove();
  const Change change(*this, meta);
  meta.load = move;
  ++in_flight_count_;
  if (meta.host.valid()) {
    const bool waits = turn == kTurnAhead || by_layer;
    Move& copy =
        copies_.emplace(move, Move{.block = id, .target = target, .turn = turn, .waits = waits})
            .first->second;
    if (!waits) BeginPromotion(copy);
  } else {
    AwaitPrefixCopy();
    moves_.emplace(move, Move{.block = id, .target = target, .record = meta.record, .turn = turn});
    std::byte* const to = PoolOf(target.tier).Address(target.slot);
    disk_->Load(move, meta.record, IdentityOf(meta), {to, layout_.block_bytes()}, turn);
  }
  return true;
}

void BlockStore::Reorder(std::span<const BlockId> blocks) {
  std::vector<MoveId> loads;
  for (const BlockId id : blocks) {
    if (moves_.contains(At(id).load)) loads.push_back(At(id).load);
  }
  if (!loads.empty()) disk_->Reorder(loads);
}

void BlockStore::ChangeTurn(BlockId id, uint32_t from, uint32_t to) {
  if (const auto copy = copies_.find(At(id).load); copy != copies_.end()) {
    Move& move = copy->second;
    if (move.turn == from || to < move.turn) move.turn = to;
    if (move.waits && move.turn != kTurnAhead) BeginPromotion(move);
    return;
  }
  const auto move = moves_.find(At(id).load);
  if (move == moves_.end()) return;
  if (move->second.turn == from || to < move->second.turn) move->second.turn = to;
  disk_->ChangeTurn(move->first, from, to);
}

void BlockStore::OrderLoads() {
  if (disk_) disk_->OrderLoads();
  if (!copies_.empty()) BeginPromotionsAhead();
  BeginCopies();
}

// A load that has not begun is forgotten; one that has goes on.
void BlockStore::CancelLoad(BlockId id) {
  BlockMeta& meta = At(id);
  auto* const moves = copies_.contains(meta.load) ? &copies_ : &moves_;
  const auto move = moves->find(meta.load);
  if (move == moves->end() || !CancelMove(*move)) return;
  if (move->second.copy != nullptr) host_meter_.Cancel();
  const Change change(*this, meta);
  meta.load = MoveId();
  --in_flight_count_;
  GiveSlot(move->second.target);
  moves->erase(move);
}

void BlockStore::CancelStore(BlockId id) {
  BlockMeta& meta = At(id);
  auto* const moves = copies_.contains(meta.store) ? &copies_ : &moves_;
  const auto move = moves->find(meta.store);
  if (move == moves->end() || !CancelMove(*move)) return;
  const Change change(*this, meta);
  meta.store = MoveId();
  if (move->second.target.slot.valid()) {
    in_flight_count_ -= host_in_place_;
    GiveSlot(move->second.target);
  }
  moves->erase(move);
}

// True: it has not begun, and never will.
bool BlockStore::CancelMove(const std::pair<const MoveId, Move>& move) {
  if (move.second.waits) return true;
  return move.second.copy != nullptr ? copy_queue_->Cancel(move.second.copy)
                                     : disk_->Cancel(move.first);
}

bool BlockStore::BeginSpill(BlockId id, const DepartureRef& departure) {
  BlockMeta& meta = At(id);
  CHECK(!meta.store.valid() && !meta.record.valid());
  if (!disk_ || !disk_->TakesSpills() || IsTail(meta)) return false;
  const BlockIdentity identity = IdentityOf(meta);
  // A key that had to be made up would not be found again.
  if (identity.key != index_.KeyOf(identity.parent, identity.tokens)) return false;
  const MoveId move = NextMove();
  const Change change(*this, meta);
  meta.store = move;
  meta.reused_since_spill = false;
  AwaitPrefixCopy();
  moves_.emplace(move, Move{.block = id, .departure = departure});
  disk_->Spill(move, id, identity, {AddressOf(meta), layout_.block_bytes()});
  return true;
}

bool BlockStore::AwaitsRoom(uint32_t count, Clock::Monotonic::duration waited) {
  const bool may_spill = disk_ && disk_->is_answering();
  if (!may_spill && !can_demote()) return false;
  const std::vector<BlockId> making_room = MakingRoom();
  const double waited_s = std::chrono::duration<double>(waited).count();
  if (waited_s > kRoomWaitMin && waited_s > kRoomPatience * PriceOfLoss(making_room, count)) {
    KeepFromLeaving(making_room, count);
    // What has begun keeps its slots, perhaps all that are wanted: a segment does not wait for
    // more.
    if (disk_ && !MakingRoom().empty()) disk_->Close();
    return false;
  }
  auto leaving = static_cast<uint32_t>(making_room.size());
  if (leaving < count) {
    for (const BlockId id : RankIdle(count - leaving, Idle::kDirty)) {
      leaving += BeginCopyBelow(id);
    }
  }
  if (leaving > 0 && disk_) disk_->Close();  // somebody waits for what was written
  // Without room on the disk nothing leaves until a segment is gone.
  const bool room_comes = may_spill && disk_->makes_room() && Count(Standing::kDirty) > 0;
  return leaving > 0 || room_comes;
}

// Idle blocks that will be clean once a move is over.
std::vector<BlockId> BlockStore::MakingRoom() const {
  std::vector<BlockId> leaving;
  for (const auto* moves : {&moves_, &copies_}) {
    for (const auto& [id, move] : *moves) {
      const std::optional<BlockMeta>& meta = blocks_[move.block.value()];
      if (!move.is_stuck && meta && meta->store == id && StandingOf(*meta) == Standing::kBusy) {
        leaving.push_back(move.block);
      }
    }
  }
  return leaving;
}

// Computing `count` blocks again that are like those that leave.
double BlockStore::PriceOfLoss(std::span<const BlockId> leaving, uint32_t count) const {
  const BlockPrices prices = PricesNow();
  if (leaving.empty()) return count * prices.Recompute(0);
  double seconds = 0;
  for (const BlockId id : leaving) seconds += prices.Recompute(At(id).first_position);
  return seconds * count / static_cast<double>(leaving.size());
}

// What a client has asked to leave does leave.
void BlockStore::KeepFromLeaving(std::span<const BlockId> leaving, uint32_t count) {
  for (const BlockId id : leaving) {
    if (count == 0) return;
    const MoveId store = At(id).store;
    const auto& moves = copies_.contains(store) ? copies_ : moves_;
    if (moves.at(store).departure != nullptr) continue;
    CancelStore(id);
    count -= !At(id).store.valid();
  }
}

// Makes a copy of an idle block in the next tier that has room.
bool BlockStore::BeginCopyBelow(BlockId id) {
  const BlockMeta& meta = At(id);
  const bool to_host = can_demote() && !IsTail(meta);
  if (to_host && BeginDemotion(id, nullptr)) return true;
  return BeginSpill(id, nullptr);
}

void BlockStore::Suspend(const BlockKey& root, std::span<const uint32_t> tokens, Tier tier,
                         std::function<void()> done) {
  CHECK(tier == Tier::kHost || tier == Tier::kDisk || tier == Tier::kAbsent);
  if (tier == Tier::kAbsent) {
    DropUnheld(root, tokens);
    return done();
  }
  DepartAll(BlocksOf(root, tokens, 0), tier, std::move(done));
}

void BlockStore::SpillAll(std::function<void()> done) {
  std::vector<BlockId> ids = disk_ ? RankIdle(static_cast<uint32_t>(blocks_.size()), Idle::kDirty)
                                   : std::vector<BlockId>();
  std::ranges::reverse(ids);
  DepartAll(ids, Tier::kDevice, std::move(done));
}

void BlockStore::DepartAll(const std::vector<BlockId>& ids, Tier tier, std::function<void()> done) {
  auto departure = std::make_shared<Departure>(Departure{std::move(done), tier});
  for (const BlockId id : ids) {
    if (!blocks_[id.value()]) continue;  // it made room for another
    if (!Leave(id, departure)) leaving_.push_back({id, At(id).seal_order, departure});
  }
  if (disk_) disk_->Close();
  departures_.push_back(std::move(departure));
  BeginCopies();
  TellArrived();
}

// A departure is over when nothing refers to it any more but this list. Told last of all: who hears
// of it may ask the store something.
void BlockStore::TellArrived() {
  std::vector<DepartureRef> arrived;
  std::erase_if(departures_, [&](DepartureRef& departure) {
    if (departure.use_count() > 1) return false;
    arrived.push_back(std::move(departure));
    return true;
  });
  for (const DepartureRef& departure : arrived) departure->done();
}

void BlockStore::EndDepartures() {
  for (const DepartureRef& departure : std::exchange(departures_, {})) departure->done();
}

// True when nothing is left to be begun for this block.
bool BlockStore::Leave(BlockId id, const DepartureRef& departure) {
  const BlockMeta& meta = At(id);
  if (meta.hold_count > 0 || meta.load.valid()) return true;  // somebody wants it here
  if (!meta.device.valid() && !meta.host.valid()) return true;
  if (meta.store.valid()) return false;  // another move reads it
  if (departure->tier == Tier::kHost && host_pool_) return LeaveForHost(id, departure);
  return LeaveForDisk(id, departure);
}

bool BlockStore::LeaveForHost(BlockId id, const DepartureRef& departure) {
  BlockMeta& meta = At(id);
  if (!meta.device.valid()) return true;
  if (!meta.host.valid()) {
    return BeginDemotion(id, departure) || LeaveForDisk(id, departure);
  }
  const Change change(*this, meta);
  device_pool_.Give(std::exchange(meta.device, SlotId()));
  return true;
}

bool BlockStore::LeaveForDisk(BlockId id, const DepartureRef& departure) {
  BlockMeta& meta = At(id);
  const bool stays = departure->tier == Tier::kDevice;
  if (meta.record.valid() || IsTail(meta) || !disk_) {
    if (!stays) EmptyMemory(id);
    return true;
  }
  // Without room it waits for a segment to go; a disk that does not answer is not waited for.
  return BeginSpill(id, departure) || !disk_->makes_room();
}

void BlockStore::RetryLeaving() {
  std::vector<Leaving> waiting = std::exchange(leaving_, {});
  bool begun = false;
  for (Leaving& leaving : waiting) {
    const std::optional<BlockMeta>& meta = blocks_[leaving.block.value()];
    const bool is_there = meta && meta->seal_order == leaving.seal_order;
    if (is_there && !Leave(leaving.block, leaving.departure)) {
      leaving_.push_back(std::move(leaving));
      continue;
    }
    begun = true;
  }
  if (begun && disk_) disk_->Close();
}

bool BlockStore::Poll() {
  bool any = false;
  if (disk_) {
    const DiskTier::News news = disk_->Poll();
    any = !news.outcomes.empty();
    for (const DiskTier::Relocation& relocation : news.relocations) Relocate(relocation);
    for (const DiskTier::Outcome& outcome : news.outcomes) EndDiskMove(outcome);
    RetireIfDue();
  }
  any |= EndCopies();
  if (!copies_.empty()) BeginPromotionsAhead();
  if (!leaving_.empty()) RetryLeaving();
  BeginCopies();
  TellArrived();
  return any;
}

void BlockStore::EndDiskMove(const DiskTier::Outcome& outcome) {
  const auto found = moves_.find(outcome.move);
  CHECK(found != moves_.end());
  if (outcome.fate == DiskTier::Fate::kGivenUp) {
    // Whoever waits goes on; the slot stays with the move.
    found->second.departure.reset();
    if (found->second.target.slot.valid()) {
      LoseLoad(outcome.move, found->second);
    } else {
      found->second.is_stuck = true;
    }
    return;
  }
  const Move move = std::move(found->second);
  moves_.erase(found);
  if (move.target.slot.valid()) {
    EndLoad(outcome.move, move, outcome.status, outcome.record_is_good);
  } else {
    EndStore(outcome.move, move, outcome.record);
  }
}

// The block that `move` was to bring is not on its way any more.
void BlockStore::LoseLoad(MoveId id, const Move& move) {
  std::optional<BlockMeta>& meta = blocks_[move.block.value()];
  if (!meta || meta->load != id) return;  // it had been given up before
  {
    const Change change(*this, *meta);
    meta->load = MoveId();
  }
  FreeIfGone(move.block);
}

void BlockStore::EndLoad(MoveId id, const Move& move, const Status& status, bool record_is_good) {
  --in_flight_count_;
  std::optional<BlockMeta>& meta = blocks_[move.block.value()];
  const bool is_wanted = meta && meta->load == id;
  if (!is_wanted || !status.ok() || IsResident(*meta)) {  // computed again meanwhile, perhaps
    GiveSlot(move.target);
  } else {
    const Change change(*this, *meta);
    SetSlot(move.block, move.target);
  }
  if (!is_wanted) return;
  const bool was_on_disk = move.record.valid();
  const bool is_elsewhere = was_on_disk && meta->record != move.record;  // it was moved meanwhile
  if (was_on_disk && !is_elsewhere && !record_is_good) ForgetRecord(move.block);
  const bool is_doomed = meta->doomed && meta->hold_count == 0;
  LoseLoad(id, move);
  if (is_doomed) {
    if (blocks_[move.block.value()]) Drop(move.block);
  } else if (!status.ok() && is_elsewhere && blocks_[move.block.value()]) {
    BeginLoad(move.block, move.turn);
  }
}

// A copy for a tier further down is made, or has failed.
void BlockStore::EndStore(MoveId id, const Move& move, RecordId record) {
  BlockMeta& meta = At(move.block);
  CHECK(meta.store == id);
  {
    const Change change(*this, meta);
    meta.store = MoveId();
    if (record.valid()) meta.record = record;
  }
  if (meta.doomed && meta.hold_count == 0) {
    Drop(move.block);
  } else if (record.valid() && move.departure != nullptr && meta.hold_count == 0 &&
             move.departure->tier != Tier::kDevice) {
    EmptyMemory(move.block);
  }
}

void BlockStore::ForgetRecord(BlockId id) {
  BlockMeta& meta = At(id);
  disk_->Forget(meta.record);
  {
    const Change change(*this, meta);
    meta.record = RecordId();
  }
  FreeIfGone(id);
}

void BlockStore::Relocate(const DiskTier::Relocation& relocation) {
  if (!relocation.block.valid()) {  // nobody has asked for it yet
    const auto key = found_keys_.find(relocation.from);
    CHECK(key != found_keys_.end());
    const BlockKey block = key->second;
    found_keys_.erase(key);
    if (relocation.to.valid()) {
      found_.at(block) = relocation.to;
      found_keys_.emplace(relocation.to, block);
    } else {
      found_.erase(block);
    }
    return;
  }
  BlockMeta& meta = At(relocation.block);
  CHECK(meta.record == relocation.from);
  {
    const Change change(*this, meta);
    meta.record = relocation.to;
  }
  FreeIfGone(relocation.block);
}

// Of a segment that goes for want of room, what was used since it was written, and is worth writing
// again, gets a second chance. Not what is in memory: a record of that saves nothing now, and it is
// written again when it is to leave.
void BlockStore::RetireIfDue() {
  while (std::optional<DiskTier::Candidate> candidate = disk_->SegmentToRetire()) {
    std::vector<RecordId> keep;
    std::vector<std::pair<RecordId, BlockId>> gone;
    for (const auto& [record, block] : candidate->records) {
      const bool was_used = block.valid() && std::exchange(At(block).reused_since_spill, false) &&
                            At(block).first_position >= first_worth_writing_ &&
                            !IsResident(At(block));
      const bool stays = (candidate->keeps_all || was_used) && keep.size() < candidate->keep_max;
      if (stays) {
        keep.push_back(record);
      } else {
        gone.emplace_back(record, block);
      }
    }
    disk_->Retire(NextMove(), *candidate, keep);
    for (const auto& [record, block] : gone) {
      Relocate({.block = block, .from = record, .to = RecordId()});
    }
  }
}

}  // namespace cairn
