// When a disk counts as hanging, and what becomes of loads whose segment goes.
#include "offload/disk_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"

namespace cairn {
namespace {

using std::chrono::seconds;

constexpr size_t kBytes = 1000;

// Something is ordered to be written, and nothing ends.
class HangingDisk : public testing::Test {
 protected:
  HangingDisk() {
    auto store = std::make_unique<FakeSpillStore>(files_, FakeSpillOptions{.hangs = true}, kBytes);
    store_ = store.get();
    tier_ = std::make_unique<DiskTier>(std::move(store), clock_);
    tier_->Spill(MoveId(1), BlockId(1), {.first_position = 0}, bytes_);
  }
  // Whether the order is given up within the time.
  bool IsGivenUpAfter(seconds time) {
    clock_.Advance(time);
    return !tier_->Poll().outcomes.empty();
  }

  FakeClock clock_;
  FakeDisk files_;
  FakeSpillStore* store_ = nullptr;
  std::unique_ptr<DiskTier> tier_;
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(kBytes);
};

TEST_F(HangingDisk, IsGivenUpAfterAWhile) {
  EXPECT_FALSE(IsGivenUpAfter(DiskTier::kPatience - seconds(1)));
  EXPECT_TRUE(IsGivenUpAfter(seconds(2)));
  EXPECT_FALSE(tier_->TakesSpills());
}

// A segment takes long to fill, but records are appended to it all the time.
TEST_F(HangingDisk, IsNoneWhileRecordsGetDone) {
  for (int i = 0; i < 20; ++i) {
    ++store_->options.record_count;
    ASSERT_FALSE(IsGivenUpAfter(DiskTier::kPatience - seconds(1)));
  }
  EXPECT_TRUE(tier_->TakesSpills());
  EXPECT_TRUE(IsGivenUpAfter(DiskTier::kPatience));
}

TEST_F(HangingDisk, IsNoneWhileALimitHoldsBackARecord) {
  store_->options.bandwidth_limit = 100;  // a record takes ten seconds, and waits for others
  EXPECT_FALSE(IsGivenUpAfter(seconds(45)));
  EXPECT_TRUE(IsGivenUpAfter(seconds(6)));
}

TEST_F(HangingDisk, IsUsedAgainWhenARecordGetsDone) {
  ASSERT_TRUE(IsGivenUpAfter(DiskTier::kPatience));
  ++store_->options.record_count;
  tier_->Poll();
  EXPECT_TRUE(tier_->TakesSpills());
}

// Two segments of four records, and room for hardly more: the first is the next to go.
class SegmentThatGoes : public testing::Test {
 protected:
  using Fate = DiskTier::Fate;

  SegmentThatGoes() {
    auto store = std::make_unique<FakeSpillStore>(
        files_, FakeSpillOptions{.quota_blocks = 12, .answer_chance = 1}, kBytes);
    store_ = store.get();
    tier_ = std::make_unique<DiskTier>(std::move(store), clock_);
    for (uint32_t i = 0; i < 8; ++i) {
      tier_->Spill(MoveId(++last_move_), BlockId(i + 1), BlockOf(i), bytes_);
      if (i % 4 < 3) continue;
      for (const DiskTier::Outcome& outcome : PollUntil(4)) records_.push_back(outcome.record);
    }
    std::ranges::sort(records_);
  }

  static BlockIdentity BlockOf(uint32_t index) { return {.first_position = 16 * index}; }
  MoveId Load(size_t index, uint32_t turn) {
    std::vector<std::byte>& target = targets_.emplace_back(kBytes);
    tier_->Load(MoveId(++last_move_), records_[index], BlockOf(static_cast<uint32_t>(index)),
                target, turn);
    return MoveId(last_move_);
  }
  void Retire(const std::vector<RecordId>& keep = {}) {
    const auto candidate = tier_->SegmentToRetire();
    ASSERT_TRUE(candidate && candidate->segment == SegmentId(records_[0].value()));
    tier_->Retire(MoveId(++last_move_), *candidate, keep);
  }
  std::vector<DiskTier::Outcome> PollUntil(size_t count) {
    std::vector<DiskTier::Outcome> outcomes;
    while (outcomes.size() < count) {
      for (DiskTier::Outcome& one : tier_->Poll().outcomes) outcomes.push_back(std::move(one));
    }
    return outcomes;
  }
  // A miss is counted where the segment went, and held against nobody.
  void ExpectNoFailure() {
    const DiskTierStats stats = tier_->stats();
    EXPECT_EQ(stats.load_failures, 0u);
    EXPECT_EQ(stats.corrupt, 0u);
    EXPECT_FALSE(stats.is_paused);
    EXPECT_TRUE(tier_->TakesLoads());
  }

  FakeClock clock_;
  FakeDisk files_;
  FakeSpillStore* store_ = nullptr;
  std::unique_ptr<DiskTier> tier_;
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(kBytes);
  std::deque<std::vector<std::byte>> targets_;
  std::vector<RecordId> records_;  // of blocks 0.., in the order of their first positions
  uint64_t last_move_ = 0;
};

TEST_F(SegmentThatGoes, WhatWaitsForItsTurnIsAMissAtOnce) {
  testing::internal::CaptureStderr();
  store_->options.hangs = true;
  Load(4, 0);  // of the other segment
  std::vector<MoveId> ahead;
  for (size_t i = 0; i < 4; ++i) ahead.push_back(Load(i, kTurnAhead));
  Retire();
  const DiskTier::News news = tier_->Poll();
  ASSERT_EQ(news.outcomes.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(news.outcomes[i].move, ahead[i]);
    EXPECT_EQ(news.outcomes[i].fate, Fate::kFailed);
    EXPECT_EQ(news.outcomes[i].status.code(), Code::kNotFound);
  }
  EXPECT_EQ(tier_->stats().evictions, 4u);
  ExpectNoFailure();
  store_->options.hangs = false;
  EXPECT_EQ(PollUntil(1)[0].fate, Fate::kDone) << "the other one";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// The store itself may have let them wait, for want of a slot of the host's memory.
TEST_F(SegmentThatGoes, WhatTheStoreFindsNoMoreIsAMiss) {
  testing::internal::CaptureStderr();
  Retire();
  while (tier_->stats().retired_segments == 0) tier_->Poll();
  for (size_t i = 0; i < 4; ++i) Load(i, 0);
  for (const DiskTier::Outcome& outcome : PollUntil(4)) {
    EXPECT_EQ(outcome.fate, Fate::kFailed);
    EXPECT_EQ(outcome.status.code(), Code::kNotFound);
  }
  ExpectNoFailure();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(SegmentThatGoes, WhatIsMissingFromOneThatStaysIsAFailure) {
  auto& left = std::next(files_.segments.begin())->second.records;
  left.erase(left.begin(), std::next(left.begin(), 3));
  for (size_t i = 4; i < 7; ++i) Load(i, 0);
  PollUntil(3);
  EXPECT_EQ(tier_->stats().load_failures, 3u);
  EXPECT_FALSE(tier_->TakesLoads());
}

// What the store will read since it was asked before the segment was to go would be lost if it were
// asked again later.
TEST_F(SegmentThatGoes, WhatWasAskedInTimeIsNotTakenBack) {
  store_->options.hangs = true;
  Load(0, 5);
  Load(4, 5);
  Retire();
  Load(5, 1);
  tier_->OrderLoads();
  EXPECT_EQ(store_->cancel_count(), 1u) << "only the one of the segment that stays";
}

// Nobody has looked at its record, so that it may be read when the disk answers.
TEST_F(SegmentThatGoes, WhatWaitsBehindADiskThatHangsIsStillThere) {
  store_->options.hangs = true;
  Load(4, 0);
  const MoveId ahead = Load(5, kTurnAhead);
  clock_.Advance(DiskTier::kPatience);
  const DiskTier::News news = tier_->Poll();
  const auto given_up = std::ranges::find(news.outcomes, ahead, &DiskTier::Outcome::move);
  ASSERT_NE(given_up, news.outcomes.end());
  EXPECT_EQ(given_up->fate, Fate::kFailed);
  EXPECT_TRUE(given_up->record_is_good);
  store_->options.hangs = false;
  PollUntil(1);
  Load(5, 0);
  EXPECT_EQ(PollUntil(1)[0].fate, Fate::kDone);
}

TEST_F(SegmentThatGoes, WhatIsMovedIsLookedForAgain) {
  Load(4, 0);
  const MoveId ahead = Load(1, kTurnAhead);
  Retire({records_[1]});
  std::vector<DiskTier::Outcome> outcomes;
  std::vector<DiskTier::Relocation> relocations;
  while (outcomes.size() < 2) {
    DiskTier::News news = tier_->Poll();
    std::ranges::move(news.outcomes, std::back_inserter(outcomes));
    std::ranges::move(news.relocations, std::back_inserter(relocations));
  }
  ASSERT_EQ(relocations.size(), 1u);
  EXPECT_EQ(relocations[0].from, records_[1]);
  EXPECT_GT(relocations[0].to, records_[7]);
  const auto moved = std::ranges::find(outcomes, ahead, &DiskTier::Outcome::move);
  ASSERT_NE(moved, outcomes.end());
  EXPECT_EQ(moved->status.code(), Code::kNotFound) << "there; the block is somewhere else";
  ExpectNoFailure();
  records_[1] = relocations[0].to;
  Load(1, 0);
  EXPECT_EQ(PollUntil(1)[0].fate, Fate::kDone);
}

// An order that is to show whether a disk that has failed may be used again, and is cancelled.
TEST_F(SegmentThatGoes, AProbeThatSaysNothingIsFollowedByAnother) {
  store_->options.read_error = 1;
  for (size_t i = 4; i < 7; ++i) Load(i, 0);
  PollUntil(3);
  EXPECT_FALSE(tier_->TakesLoads());
  clock_.Advance(seconds(2));
  store_->options.read_error = 0;
  const MoveId probe = Load(4, 0);
  EXPECT_FALSE(tier_->TakesLoads()) << "one at a time";
  while (!tier_->Cancel(probe)) {  // the store refuses at random
  }
  ASSERT_TRUE(tier_->TakesLoads());
  Load(4, 0);
  EXPECT_EQ(PollUntil(1)[0].fate, Fate::kDone);
  EXPECT_TRUE(tier_->TakesLoads());
}

}  // namespace
}  // namespace cairn
