#include "offload/disk_tier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cairn {
namespace {

using std::chrono::nanoseconds;

// Longer than an open segment waits for more, so that what is tried ends.
constexpr std::chrono::seconds kWriteProbeInterval{10};
// Records whose bytes may move before those of one more, under a limit: two readers' and a move's.
constexpr int kRecordsBefore = 4;
constexpr uint64_t kCompactMin = 4;  // segments, below which dead records are left alone

// What is kept free: blocks are written while the oldest segment goes, and what is kept of it.
uint64_t FreeBytesKept(const SpillStats& stats) { return stats.segment_bytes + stats.record_bytes; }

// Blocks for which the quota has room beside `kept_bytes`.
uint64_t CapacityOf(const SpillStats& stats, uint64_t kept_bytes) {
  const uint64_t others = stats.reserved_bytes + kept_bytes;
  return stats.quota_bytes <= others ? 0 : (stats.quota_bytes - others) / stats.record_bytes;
}

// Orders before which no price is trusted: the first ones meet cold caches.
constexpr uint64_t kTrustedMin = 8;

// Slow-moving, so that one slow order does not condemn the disk; one that turns ten times as slow
// shows within eight orders.
void Learn(std::chrono::nanoseconds& mean, std::chrono::nanoseconds sample) {
  mean = mean.count() == 0 ? sample : (7 * mean + sample) / 8;
}

}  // namespace

DiskTier::DiskTier(std::unique_ptr<SpillStore> store, const Clock& clock)
    : store_(std::move(store)), clock_(clock), health_(clock), last_progress_(clock.Now()) {}

std::vector<FoundRecord> DiskTier::TakeFound() {
  std::vector<FoundRecord> found = store_->TakeFound();
  for (const FoundRecord& record : found) {
    segments_[record.segment].Add(record.record, BlockId());
  }
  return found;
}

void DiskTier::Segment::Add(RecordId record, BlockId owner) {
  const auto after = std::ranges::upper_bound(records_, record, {}, &Record::id);
  CHECK(after == records_.begin() || std::prev(after)->id != record);
  records_.insert(after, {record, owner});
}

DiskTier::Segment::Record& DiskTier::Segment::At(RecordId record) {
  const auto found = std::ranges::lower_bound(records_, record, {}, &Record::id);
  CHECK(found != records_.end() && found->id == record && found->is_wanted);
  return *found;
}

BlockId& DiskTier::Segment::OwnerOf(RecordId record) { return At(record).owner; }

void DiskTier::Segment::Forget(RecordId record) {
  At(record).is_wanted = false;
  ++forgotten_count_;
}

std::vector<std::pair<RecordId, BlockId>> DiskTier::Segment::wanted() const {
  std::vector<std::pair<RecordId, BlockId>> wanted;
  wanted.reserve(wanted_count());
  for (const Record& record : records_) {
    if (record.is_wanted) wanted.emplace_back(record.id, record.owner);
  }
  return wanted;
}

DiskTier::Segment& DiskTier::SegmentOf(RecordId record) {
  auto after = segments_.upper_bound(SegmentId(record.value()));
  CHECK(after != segments_.begin());
  return std::prev(after)->second;
}

// It lies in a segment that goes or is gone; a segment that has been forgotten has no other
// records.
bool DiskTier::IsLeaving(RecordId record) const {
  const auto after = segments_.upper_bound(SegmentId(record.value()));
  return after == segments_.begin() || !std::prev(after)->second.Has(record);
}

void DiskTier::Adopt(RecordId record, BlockId block) {
  CHECK(block.valid());
  const bool is_moving = retiring_ && retiring_->kept.contains(record);
  BlockId& owner = is_moving ? retiring_->kept.at(record) : SegmentOf(record).OwnerOf(record);
  CHECK(!owner.valid());
  owner = block;
}

bool DiskTier::TakesLoads() const { return !hangs_ && health_.is_up(); }

double DiskTier::write_s() const {
  const auto time = counts_.spills < kTrustedMin ? nanoseconds(0) : counts_.spill_time;
  return std::chrono::duration<double>(std::max(time, LimitedTime())).count();
}

bool DiskTier::write_is_due() const { return clock_.Now() - last_spill_ >= kWriteProbeInterval; }

// What a block takes at least under the limit on the bandwidth.
nanoseconds DiskTier::LimitedTime() const {
  const SpillStats stats = store_->stats();
  if (stats.bandwidth_limit == 0) return nanoseconds(0);
  return nanoseconds(stats.record_bytes * 1'000'000'000 / stats.bandwidth_limit);
}

LoadFlow DiskTier::load_flow() const {
  LoadFlow flow = load_meter_.flow();
  flow.block_s = std::max(flow.block_s, std::chrono::duration<double>(LimitedTime()).count());
  flow.under_way = waited_loads_;
  return flow;
}

bool DiskTier::TakesSpills() const {
  return !hangs_ && health_.is_up() && HasRoomFor(store_->stats().record_bytes);
}

bool DiskTier::HasRoomFor(uint64_t bytes) const {
  const SpillStats stats = store_->stats();
  return stats.used_bytes + bytes <= stats.quota_bytes;
}

void DiskTier::Begin(MoveId move, Order order) {
  if (orders_.empty() && !retiring_) last_progress_ = clock_.Now();
  order.is_probe = health_.OnOrder();
  waited_loads_ += order.kind == Kind::kLoad && order.turn != kTurnAhead;
  CHECK(orders_.emplace(move, std::move(order)).second);
}

void DiskTier::End(std::map<MoveId, Order>::iterator order) {
  const bool is_load = order->second.kind == Kind::kLoad;
  const bool was_waited_for = is_load && order->second.turn != kTurnAhead;
  orders_.erase(order);
  waited_loads_ -= was_waited_for;
  if (was_waited_for && waited_loads_ == 0) is_disordered_ = true;  // others may be due
}

// Without a word of whether the disk is of use.
void DiskTier::EndUnanswered(std::map<MoveId, Order>::iterator order) {
  if (order->second.is_probe) health_.OnNoAnswer();
  End(order);
}

void DiskTier::Load(MoveId move, RecordId record, const BlockIdentity& block,
                    std::span<std::byte> payload, uint32_t turn) {
  CHECK(TakesLoads());
  Begin(move, {.kind = Kind::kLoad,
               .read = {SpillTicket(move.value()), record, block, payload},
               .turn = turn});
  const bool is_last = turn >= latest_turn_ && !is_disordered_;
  if (is_last && (turn != kTurnAhead || waited_loads_ == 0)) {
    Hand(orders_.at(move));
  } else {
    is_disordered_ = true;
  }
}

void DiskTier::Hand(Order& order) {
  order.handed = ++handed_count_;
  latest_turn_ = std::max(latest_turn_, order.turn);
  load_meter_.Begin(clock_.Now());
  store_->Read(order.read);
}

// What the store has not begun waits again; not what it reads only because it was asked before the
// segment was to go.
void DiskTier::TakeBack() {
  std::vector<Order*> handed;
  for (auto& [move, order] : orders_) {
    if (order.handed == 0 || order.given_up || IsLeaving(order.read.record)) continue;
    handed.push_back(&order);
  }
  std::ranges::sort(handed, {}, &Order::handed);  // as the store looks for them
  for (Order* order : handed) {
    if (!store_->Cancel(order->read.ticket)) continue;
    load_meter_.Cancel();
    order->handed = 0;
  }
  latest_turn_ = 0;
}

void DiskTier::OrderLoads() {
  if (!is_disordered_ || hangs_) return;
  is_disordered_ = false;
  TakeBack();
  std::vector<Order*> waiting;
  for (auto& [move, order] : orders_) {
    const bool is_due = order.turn != kTurnAhead || waited_loads_ == 0;
    if (order.waits() && is_due) waiting.push_back(&order);
  }
  std::ranges::stable_sort(waiting, {},
                           [](const Order* order) { return std::pair(order->turn, order->rank); });
  for (Order* order : waiting) Hand(*order);
}

void DiskTier::Reorder(std::span<const MoveId> loads) {
  uint32_t rank = 0;
  for (const MoveId move : loads) orders_.at(move).rank = rank++;
  is_disordered_ = true;
}

void DiskTier::ChangeTurn(MoveId move, uint32_t from, uint32_t to) {
  Order& order = orders_.at(move);
  if (order.given_up || order.turn == to || (order.turn != from && order.turn < to)) return;
  waited_loads_ -= order.turn != kTurnAhead;
  waited_loads_ += to != kTurnAhead;
  order.turn = to;
  is_disordered_ = true;
}

void DiskTier::Spill(MoveId move, BlockId owner, const BlockIdentity& block,
                     std::span<const std::byte> payload) {
  CHECK(TakesSpills());
  Begin(move, {.kind = Kind::kSpill, .owner = owner});
  last_spill_ = clock_.Now();
  has_unclosed_ = true;
  store_->Write({SpillTicket(move.value()), block, payload});
}

void DiskTier::Close() {
  if (std::exchange(has_unclosed_, false)) store_->Close();
}

bool DiskTier::Cancel(MoveId move) {
  const auto order = orders_.find(move);
  if (order == orders_.end()) return false;
  if (!order->second.waits()) {
    if (!store_->Cancel(SpillTicket(move.value()))) return false;
    if (order->second.kind == Kind::kLoad) load_meter_.Cancel();
  }
  EndUnanswered(order);
  return true;
}

void DiskTier::Forget(RecordId record) {
  if (retiring_ && retiring_->kept.erase(record) > 0) return;
  SegmentOf(record).Forget(record);
}

DiskTier::News DiskTier::Poll() {
  News news;
  uint32_t loads_ended = 0;
  uint32_t loads_done = 0;
  Clock::Monotonic last_end;
  std::vector<SpillCompletion> completions = store_->Poll();
  if (GetsOn() || !completions.empty()) {
    last_progress_ = clock_.Now();
    hangs_ = false;
  }
  for (const SpillCompletion& completion : completions) {
    const MoveId move(completion.ticket.value());
    if (retiring_ && retiring_->move == move) {
      OnRetired(completion, news);
      continue;
    }
    const auto found = orders_.find(move);
    CHECK(found != orders_.end());
    const Order order = std::move(found->second);
    End(found);
    if (order.kind == Kind::kLoad) {
      ++loads_ended;
      loads_done += completion.status.ok();
      last_end = std::max(last_end, completion.ended);
      OnRead(completion, order, news);
    } else {
      OnWritten(completion, order, news);
    }
  }
  load_meter_.Look(loads_ended, loads_done == loads_ended, last_end, clock_.Now());
  EndWhatIsGone(news);
  GiveUpWhatHangs(news);
  OrderLoads();
  return news;
}

void DiskTier::NoteOutcome(bool ok, const Status& status) {
  if (ok) {
    if (health_.OnSuccess()) LogInfo("disk tier: back in use");
  } else if (health_.OnFailure()) {
    LogWarning(
        "disk tier: left alone for " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(health_.pause()).count()) +
        " s after failures in a row, the last: " + status.ToString());
  }
}

// The device's, or that of the way to it: whether it is of use at all is found out elsewhere.
void DiskTier::NoteCopyFailure(const Status& status, const Order& order) {
  ++counts_.copy_failures;
  if (order.is_probe) health_.OnNoAnswer();
  if (std::exchange(do_copies_fail_, true)) return;
  LogWarning("device: blocks cannot be copied on their way to or from the disk: " +
             status.ToString());
}

void DiskTier::OnRead(const SpillCompletion& completion, const Order& order, News& news) {
  const Status& status = completion.status;
  const MoveId move(completion.ticket.value());
  // A damaged record says nothing of the disk's other ones: only the copy is lost.
  const bool is_corrupt = status.code() == Code::kDataLoss;
  const bool is_gone = status.code() == Code::kNotFound && IsLeaving(order.read.record);
  if (completion.copy_failed) {
    NoteCopyFailure(status, order);
  } else if (is_gone) {  // that was counted when the segment went
    if (order.is_probe) health_.OnNoAnswer();
  } else {
    NoteOutcome(status.ok() || is_corrupt, status);
  }
  if (status.ok()) {
    ++counts_.loads;
    do_copies_fail_ = false;
    Learn(counts_.load_time, completion.time);
  } else if (!is_gone && !completion.copy_failed) {
    ++counts_.load_failures;
    counts_.corrupt += is_corrupt;
    LogWarning("disk tier: a block is lost and will be computed again: " + status.ToString());
  }
  const Fate fate = order.given_up ? Fate::kReleased : status.ok() ? Fate::kDone : Fate::kFailed;
  news.outcomes.push_back({.move = move,
                           .fate = fate,
                           .status = status,
                           .record_is_good = status.ok() || completion.copy_failed});
}

void DiskTier::OnWritten(const SpillCompletion& completion, const Order& order, News& news) {
  const MoveId move(completion.ticket.value());
  if (completion.copy_failed) {
    NoteCopyFailure(completion.status, order);
  } else {
    NoteOutcome(completion.status.ok(), completion.status);
  }
  if (completion.status.ok()) {
    ++counts_.spills;
    do_copies_fail_ = false;
    Learn(counts_.spill_time, completion.time);
    segments_[completion.segment].Add(completion.record, order.owner);
  } else if (!completion.copy_failed) {
    ++counts_.spill_failures;
  }
  if (order.given_up) {  // written after all, but nobody knows of it
    if (completion.status.ok()) Forget(completion.record);
    news.outcomes.push_back({.move = move, .fate = Fate::kReleased, .status = completion.status});
    return;
  }
  news.outcomes.push_back({.move = move,
                           .fate = completion.status.ok() ? Fate::kDone : Fate::kFailed,
                           .status = completion.status,
                           .record = completion.record});
}

void DiskTier::OnRetired(const SpillCompletion& completion, News& news) {
  Records kept = std::move(retiring_->kept);
  retiring_.reset();
  is_any_gone_ = true;
  for (const SpillCompletion::Moved& moved : completion.moved) {
    const auto found = kept.find(moved.from);
    if (found == kept.end()) {  // nobody wants it any more: it is dead where it lies now
      segments_[moved.segment].AddDead();
      continue;
    }
    segments_[moved.segment].Add(moved.to, found->second);
    ++counts_.second_chances;
    news.relocations.push_back({found->second, moved.from, moved.to});
    kept.erase(found);
  }
  counts_.evictions += kept.size();
  for (const auto& [record, owner] : kept) news.relocations.push_back({owner, record, RecordId()});
  ++counts_.retired_segments;
  if (!completion.status.ok()) NoteOutcome(false, completion.status);
}

// Orders to write end together, when their segment is closed, which takes many records.
bool DiskTier::GetsOn() {
  const uint64_t count = store_->stats().record_count;
  return std::exchange(record_count_, count) != count;
}

// What waits for its turn to read a record that is not there any more, or not where it was: whoever
// wants the block looks again.
void DiskTier::EndWhatIsGone(News& news) {
  if (!std::exchange(is_any_gone_, false)) return;
  std::vector<MoveId> gone;
  for (const auto& [move, order] : orders_) {
    const RecordId record = order.read.record;
    const bool is_kept = retiring_ && retiring_->kept.contains(record);
    if (order.waits() && !is_kept && IsLeaving(record)) gone.push_back(move);
  }
  for (const MoveId move : gone) {
    news.outcomes.push_back({.move = move,
                             .fate = Fate::kFailed,
                             .status = NotFound("its segment is gone"),
                             .record_is_good = false});
    EndUnanswered(orders_.find(move));
  }
}

// Nothing has ended for too long. Whoever waits goes on without; what the disk still reads into or
// from stays untouched until it answers.
void DiskTier::GiveUpWhatHangs(News& news) {
  const bool is_waiting = !orders_.empty() || retiring_;
  // A record may wait for its turn behind others, which is nobody's fault.
  const auto patience = kPatience + kRecordsBefore * LimitedTime();
  if (hangs_ || !is_waiting || clock_.Now() - last_progress_ < patience) return;
  hangs_ = true;
  LogWarning("disk tier: no answer for " +
             std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience).count()) +
             " s; it is left alone until it answers");
  const Status status = Unavailable("the disk does not answer");
  std::vector<MoveId> cancelled;
  for (auto& [move, order] : orders_) {
    if (std::exchange(order.given_up, true)) continue;
    if (order.waits() || store_->Cancel(SpillTicket(move.value()))) {
      if (order.handed > 0) load_meter_.Cancel();
      cancelled.push_back(move);
      news.outcomes.push_back({.move = move, .fate = Fate::kFailed, .status = status});
    } else {
      news.outcomes.push_back({.move = move, .fate = Fate::kGivenUp, .status = status});
    }
  }
  for (const MoveId move : cancelled) EndUnanswered(orders_.find(move));
}

std::optional<DiskTier::Candidate> DiskTier::SegmentToRetire() const {
  if (retiring_ || hangs_) return std::nullopt;
  const SpillStats stats = store_->stats();
  const auto candidate = [](const auto& entry, size_t keep_max, bool keeps_all) {
    Candidate out{.segment = entry.first, .keep_max = keep_max, .keeps_all = keeps_all};
    out.records = entry.second.wanted();
    return out;
  };
  uint64_t dead = 0;
  for (const auto& entry : segments_) {
    if (entry.second.wanted_count() == 0) return candidate(entry, 0, false);
    dead += entry.second.dead_count();
  }
  if (!HasRoomFor(FreeBytesKept(stats))) {
    const SegmentId oldest = store_->OldestSegment();
    if (!oldest.valid()) return std::nullopt;
    const auto own = segments_.find(oldest);
    if (own == segments_.end()) return Candidate{.segment = oldest};  // of another model
    return candidate(*own, own->second.written_count() / 2, false);
  }
  // Mostly dead: the living are moved together, so that the space goes back to the file system.
  const uint64_t record_bytes = std::max<uint64_t>(stats.record_bytes, 1);
  const uint64_t used_records = stats.used_bytes / record_bytes;
  const uint64_t segment_records = stats.segment_bytes / record_bytes;
  if (used_records < kCompactMin * segment_records || 2 * dead < used_records) return std::nullopt;
  const auto deadest = std::ranges::max_element(
      segments_, {}, [](const auto& entry) { return entry.second.dead_count(); });
  return candidate(*deadest, deadest->second.wanted_count(), true);
}

void DiskTier::Retire(MoveId move, const Candidate& candidate, const std::vector<RecordId>& keep) {
  CHECK(!retiring_ && keep.size() <= candidate.keep_max);
  if (orders_.empty()) last_progress_ = clock_.Now();
  Retiring retiring{.move = move};
  for (const RecordId record : keep) {
    retiring.kept.emplace(record, segments_.at(candidate.segment).OwnerOf(record));
  }
  counts_.evictions += candidate.records.size() - keep.size();
  segments_.erase(candidate.segment);
  is_any_gone_ = true;
  store_->Retire({SpillTicket(move.value()), candidate.segment, keep});
  retiring_ = std::move(retiring);
}

DiskTierStats DiskTier::stats() const {
  DiskTierStats stats = counts_;
  stats.store = store_->stats();
  stats.capacity = CapacityOf(stats.store, FreeBytesKept(stats.store));
  for (const auto& [id, segment] : segments_) stats.records += segment.wanted_count();
  if (retiring_) stats.records += retiring_->kept.size();
  // Records are reckoned at the most that one takes: a few more may fit.
  stats.capacity_max = std::max(CapacityOf(stats.store, 0), stats.records);
  stats.is_paused = hangs_ || health_.is_paused();
  return stats;
}

}  // namespace cairn
