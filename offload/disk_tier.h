// The disk tier as BlockStore uses it: gives orders to a SpillStore, remembers which segment holds
// which block's record, says when a segment has to go, and whether the disk is worth using at all.
//
// Orders are refused while the disk fails (TierHealth), hangs, or has no room. A disk that gets no
// record done for kPatience, and the time of a few records under its limit, hangs: what waits for
// it is given up, and what it was about to write to is kept until it answers after all.
//
// What pays is not decided here (block_prices.h, restore_planner.h).
//
// Loads begin in the order of their turns (restore_plan.h), and within a turn in the order of the
// calls unless it is changed: those that have not begun step behind one of an earlier turn. Those
// of kTurnAhead begin only while no other load waits or is under way.
//
// A load whose record goes with its segment before it begins is a miss (kFailed, kNotFound), as if
// the record had not been there: that is no failure of the disk, and no damage.
// Threads: the engine thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "offload/block.h"
#include "offload/flow_meter.h"
#include "offload/restore_plan.h"
#include "offload/spill_store.h"
#include "offload/tier_health.h"

namespace cairn {

struct DiskTierStats {
  SpillStats store;
  uint64_t capacity = 0;  // blocks: with so many nothing has to go; then the oldest segment does
  uint64_t capacity_max = 0;  // blocks that the quota has room for: so many are there at most
  uint64_t records = 0;       // that somebody may want
  uint64_t loads = 0;         // since the start: orders that ended well
  uint64_t spills = 0;
  uint64_t load_failures = 0;  // of them `corrupt` because the record was not what it should be
  uint64_t spill_failures = 0;
  uint64_t corrupt = 0;
  uint64_t copy_failures = 0;  // orders that failed between the device and the host
  uint64_t evictions = 0;      // records that somebody might have wanted, gone with their segments
  uint64_t retired_segments = 0;
  uint64_t second_chances = 0;  // records that were moved out of a segment that went
  bool is_paused = false;
  std::chrono::nanoseconds load_time{0};  // of one block, as measured lately; 0: not yet
  std::chrono::nanoseconds spill_time{0};
};

class DiskTier {
 public:
  static constexpr std::chrono::seconds kPatience{10};

  DiskTier(std::unique_ptr<SpillStore> store, const Clock& clock);

  // Records of earlier processes, once. They belong to nobody until Adopt.
  std::vector<FoundRecord> TakeFound();
  void Adopt(RecordId record, BlockId block);

  // Whether a block may be loaded now, or written.
  bool TakesLoads() const;
  bool TakesSpills() const;
  // It does what it was ordered to, sooner or later.
  bool is_answering() const { return !hangs_; }
  // Writing a block takes so many seconds, with the limit on the bandwidth; 0: not known yet.
  double write_s() const;
  // Nothing was written for so long that what is known of writing may not be true any more.
  bool write_is_due() const;
  // A segment is going, so there will be more room.
  bool makes_room() const { return retiring_.has_value() && !hangs_; }
  // Orders under a name of the caller's. `payload` stays until the outcome.
  // A load may wait for OrderLoads.
  void Load(MoveId move, RecordId record, const BlockIdentity& block, std::span<std::byte> payload,
            uint32_t turn = 0);
  void Spill(MoveId move, BlockId owner, const BlockIdentity& block,
             std::span<const std::byte> payload);
  // What was ordered to be written becomes records as soon as possible.
  void Close();
  // Of the loads of one turn, these begin in this order, as far as they have not begun; others of
  // the turn after them.
  void Reorder(std::span<const MoveId> loads);
  // A load of turn `from` is one of `to` from now on; one of another turn only if that is sooner.
  void ChangeTurn(MoveId move, uint32_t from, uint32_t to);
  // Brings what has not begun into its order. Poll does it too.
  void OrderLoads();
  // True: the order has not begun, and never will.
  bool Cancel(MoveId move);
  // Nobody wants the record any more.
  void Forget(RecordId record);

  // What became of orders. An order that was given up has two outcomes: first this, later
  // kReleased.
  enum class Fate { kDone, kFailed, kGivenUp, kReleased };
  struct Outcome {
    MoveId move;
    Fate fate = Fate::kDone;
    Status status;
    RecordId record;             // of a spill that is done
    bool record_is_good = true;  // of a load: it may be read again
  };
  // A record has another place now; none: it is gone.
  struct Relocation {
    BlockId block;  // none: of an earlier process, and not adopted
    RecordId from;
    RecordId to;
  };
  struct News {
    std::vector<Outcome> outcomes;
    std::vector<Relocation> relocations;
  };
  News Poll();

  // A segment that has to go, for want of room or because most of it is dead, and what it holds.
  struct Candidate {
    SegmentId segment;
    std::vector<std::pair<RecordId, BlockId>> records;
    size_t keep_max = 0;     // records that may be moved on
    bool keeps_all = false;  // it goes because most of it is dead
  };
  std::optional<Candidate> SegmentToRetire() const;
  // The records that are not in `keep` are gone at once; what becomes of the others is in News.
  void Retire(MoveId move, const Candidate& candidate, const std::vector<RecordId>& keep);

  DiskTierStats stats() const;
  // With the limit on the bandwidth, if there is one. What is under way are loads that somebody
  // waits for.
  LoadFlow load_flow() const;
  const PredictionHistogram& load_predictions() const { return load_meter_.predictions(); }

 private:
  enum class Kind { kLoad, kSpill };
  struct Order {
    Kind kind;
    BlockId owner;  // of a spill
    bool given_up = false;
    bool is_probe = false;  // of whether the disk may be used again
    // Of a load.
    SpillRead read;
    uint32_t turn = 0;
    uint32_t rank = UINT32_MAX;  // within the turn, where it was said
    uint64_t handed = 0;         // to the store, as so manieth; 0: it waits
    bool waits() const { return kind == Kind::kLoad && handed == 0; }
  };
  using Records = std::unordered_map<RecordId, BlockId>;
  // What lies in one. There may be millions of records, in few segments.
  class Segment {
   public:
    void Add(RecordId record, BlockId owner);
    void AddDead() { ++dead_count_; }
    // The owner of a record that is wanted; none: found, and not asked for yet.
    BlockId& OwnerOf(RecordId record);
    bool Has(RecordId record) const {
      return std::ranges::binary_search(records_, record, {}, &Record::id);
    }
    void Forget(RecordId record);
    std::vector<std::pair<RecordId, BlockId>> wanted() const;
    uint64_t wanted_count() const { return records_.size() - forgotten_count_; }
    uint64_t dead_count() const { return forgotten_count_ + dead_count_; }
    uint64_t written_count() const { return records_.size() + dead_count_; }

   private:
    struct Record {
      RecordId id;
      BlockId owner;
      bool is_wanted = true;
    };
    Record& At(RecordId record);

    std::deque<Record> records_;  // as their ids grow
    uint64_t forgotten_count_ = 0;
    uint64_t dead_count_ = 0;  // of others
  };

  Segment& SegmentOf(RecordId record);
  bool IsLeaving(RecordId record) const;
  std::chrono::nanoseconds LimitedTime() const;
  void Begin(MoveId move, Order order);
  void End(std::map<MoveId, Order>::iterator order);
  void EndUnanswered(std::map<MoveId, Order>::iterator order);
  void Hand(Order& order);
  void TakeBack();
  bool HasRoomFor(uint64_t bytes) const;
  void OnRead(const SpillCompletion& completion, const Order& order, News& news);
  void OnWritten(const SpillCompletion& completion, const Order& order, News& news);
  void OnRetired(const SpillCompletion& completion, News& news);
  bool GetsOn();
  void EndWhatIsGone(News& news);
  void GiveUpWhatHangs(News& news);
  void NoteOutcome(bool ok, const Status& status);
  void NoteCopyFailure(const Status& status, const Order& order);

  std::unique_ptr<SpillStore> store_;
  const Clock& clock_;
  TierHealth health_;
  std::map<SegmentId, Segment> segments_;
  std::map<MoveId, Order> orders_;
  struct Retiring {
    MoveId move;
    Records kept;
  };
  std::optional<Retiring> retiring_;
  bool hangs_ = false;
  bool has_unclosed_ = false;  // something was written since the last Close
  Clock::Monotonic last_progress_;
  uint64_t record_count_ = 0;  // of the store, at the latest Poll
  FlowMeter load_meter_;
  uint32_t waited_loads_ = 0;  // of orders_, those that are not ahead of need
  uint32_t latest_turn_ = 0;   // of loads that the store may not have begun
  uint64_t handed_count_ = 0;
  bool is_disordered_ = false;   // a load waits that may be due
  bool do_copies_fail_ = false;  // none has ended well since one failed
  bool is_any_gone_ = false;     // a load may wait whose record is not there any more
  Clock::Monotonic last_spill_;
  DiskTierStats counts_;
};

}  // namespace cairn
