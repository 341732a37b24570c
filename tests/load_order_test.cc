// The order in which loads begin: by their turns, ahead of need only on idle bandwidth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "offload/disk_tier.h"
#include "tests/timed_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr size_t kBytes = 8;

// Reads of 10 ms; block i is the one at position i.
class LoadOrder : public testing::Test {
 protected:
  LoadOrder() {
    auto store = std::make_unique<TimedDisk>(clock_, kBytes);
    disk_ = store.get();
    disk_->read_time = [](const BlockIdentity&) { return milliseconds(10); };
    tier_ = std::make_unique<DiskTier>(std::move(store), clock_);
    for (uint32_t i = 0; i < 20; ++i) {
      tier_->Spill(NextMove(), BlockId(i), Identity(i), bytes_);
    }
    for (const DiskTier::Outcome& outcome : tier_->Poll().outcomes) {
      records_.push_back(outcome.record);
    }
  }
  static BlockIdentity Identity(uint32_t i) { return {.first_position = i}; }
  MoveId NextMove() { return MoveId(next_move_++); }
  MoveId Load(uint32_t block, uint32_t turn) {
    const MoveId move = NextMove();
    tier_->Load(move, records_.at(block), Identity(block), bytes_, turn);
    return move;
  }
  // Loads that ended by then.
  size_t PassTime(milliseconds time) {
    clock_.Advance(time);
    return tier_->Poll().outcomes.size();
  }
  std::vector<uint32_t> Begun() const {
    std::vector<uint32_t> blocks;
    for (const TimedDisk::Begun& read : disk_->begun()) blocks.push_back(read.block.first_position);
    return blocks;
  }

  FakeClock clock_;
  TimedDisk* disk_ = nullptr;
  std::unique_ptr<DiskTier> tier_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kBytes);
  std::vector<RecordId> records_;
  uint64_t next_move_ = 1;
};

TEST_F(LoadOrder, WithinATurnAsTheyWereAskedFor) {
  for (const uint32_t block : {3, 1, 2}) Load(block, 5);
  EXPECT_EQ(PassTime(milliseconds(30)), 3u);
  EXPECT_THAT(Begun(), ElementsAre(3, 1, 2));
}

TEST_F(LoadOrder, WhatHasNotBegunStepsBehindAnEarlierTurn) {
  for (const uint32_t block : {0, 1, 2}) Load(block, 7);
  for (const uint32_t block : {10, 11}) Load(block, 3);
  tier_->OrderLoads();
  Load(12, 5);
  tier_->OrderLoads();
  EXPECT_EQ(PassTime(milliseconds(60)), 6u);
  EXPECT_THAT(Begun(), ElementsAre(0, 10, 11, 12, 1, 2)) << "the first had begun";
}

TEST_F(LoadOrder, WithinATurnTheOrderMayChange) {
  std::vector<MoveId> moves;
  for (const uint32_t block : {5, 6, 7, 8}) moves.push_back(Load(block, 3));
  Load(10, 4);
  const MoveId ahead = Load(2, 3);
  tier_->Reorder(std::vector<MoveId>{ahead, moves[0], moves[3], moves[1]});
  Load(1, 3);
  tier_->OrderLoads();
  EXPECT_EQ(PassTime(milliseconds(70)), 7u);
  EXPECT_THAT(Begun(), ElementsAre(5, 2, 8, 6, 7, 1, 10)) << "5 had begun; 7 and 1 have no place";
}

TEST_F(LoadOrder, AheadOfNeedLoadsBeginOnlyWhileNobodyWaits) {
  for (const uint32_t block : {0, 1, 2, 3}) Load(block, kTurnAhead);
  PassTime(milliseconds(15));  // 0 is there, 1 is being read
  EXPECT_EQ(tier_->load_flow().under_way, 0u) << "it keeps nobody waiting";
  for (const uint32_t block : {10, 11}) Load(block, 9);
  tier_->OrderLoads();
  EXPECT_EQ(tier_->load_flow().under_way, 2u);
  Load(4, kTurnAhead);
  PassTime(milliseconds(13));  // 1 is there, 10 is being read
  Load(12, 2);
  tier_->OrderLoads();
  PassTime(milliseconds(20));  // 10 and 12 are there, 11 is being read
  EXPECT_THAT(Begun(), ElementsAre(0, 1, 10, 12, 11));
  PassTime(milliseconds(100));
  EXPECT_THAT(Begun(), ElementsAre(0, 1, 10, 12, 11, 2)) << "begins once somebody looks";
  PassTime(milliseconds(100));
  EXPECT_THAT(Begun(), ElementsAre(0, 1, 10, 12, 11, 2, 3, 4));
}

TEST_F(LoadOrder, ALoadAheadOfNeedThatIsWantedNowIsHurried) {
  std::vector<MoveId> moves;
  for (const uint32_t block : {0, 1, 2, 3}) moves.push_back(Load(block, kTurnAhead));
  tier_->ChangeTurn(moves[3], 4, 4);
  tier_->OrderLoads();
  EXPECT_EQ(tier_->load_flow().under_way, 1u);
  tier_->ChangeTurn(moves[3], 8, 8);  // whoever is later does not hold it up
  PassTime(milliseconds(20));
  EXPECT_THAT(Begun(), ElementsAre(0, 3, 1));
}

TEST_F(LoadOrder, WhatWaitsIsCancelledAtOnceAndIsNotReadLater) {
  const MoveId begun = Load(0, 1);
  const MoveId ahead = Load(1, kTurnAhead);
  EXPECT_TRUE(tier_->Cancel(ahead));
  EXPECT_FALSE(tier_->Cancel(begun));
  EXPECT_EQ(PassTime(milliseconds(100)), 1u);
  EXPECT_THAT(Begun(), ElementsAre(0));
}

TEST_F(LoadOrder, WhatWaitsBehindADiskThatHangsFails) {
  disk_->read_time = [](const BlockIdentity&) { return std::chrono::hours(1); };
  Load(0, 1);
  Load(1, kTurnAhead);
  clock_.Advance(2 * DiskTier::kPatience);
  const auto outcomes = tier_->Poll().outcomes;
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].fate, DiskTier::Fate::kGivenUp);
  EXPECT_EQ(outcomes[1].fate, DiskTier::Fate::kFailed);
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(tier_->Poll().outcomes.size(), 1u);
  EXPECT_THAT(Begun(), ElementsAre(0));
}

// A whole engine that loads whatever has a copy, 10 ms a block.
class PrefetchOrder : public testing::Test {
 protected:
  PrefetchOrder() : engine_({.policy = RestorePolicy::kLoadAll}) {
    engine_.disk().read_time = [](const BlockIdentity&) { return milliseconds(10); };
    engine_.Prepare("ahead", 1, 40);
    engine_.Prepare("now", 2, 20);
  }
  void Prefetch(const std::string& id) {
    ASSERT_TRUE(engine_.core().PrefetchSession(id, engine_.NextId()).ok());
  }
  int64_t AbsentTokens(const std::string& id) {
    const Residency residency = engine_.core().GetSession(id)->residency;
    return residency.absent_tokens + residency.disk_tokens;
  }

  TimedEngine engine_;
};

TEST_F(PrefetchOrder, AContextThatIsWaitedForHardlyNoticesAPrefetch) {
  Prefetch("ahead");
  engine_.RunFor(0.1);
  const auto now = engine_.Start("now", {}, 1);
  engine_.RunUntil([&] { return now->end.has_value(); });
  EXPECT_NEAR(now->first_token_s(), 0.2 + 0.006, 0.012) << "alone, and one block";
  EXPECT_GT(AbsentTokens("ahead"), 25 * 16);
  engine_.RunFor(0.32);
  EXPECT_LE(AbsentTokens("ahead"), 16) << "it goes on";
  EXPECT_LE(engine_.disk().begun().size(), 60u) << "nothing was read twice";
}

TEST_F(PrefetchOrder, APrefetchThatComesSecondWaits) {
  const auto now = engine_.Start("now", {}, 1);
  engine_.Step();
  Prefetch("ahead");
  engine_.RunUntil([&] { return now->end.has_value(); });
  EXPECT_NEAR(now->first_token_s(), 0.2 + 0.006, 0.002);
  EXPECT_LE(engine_.disk().begun().size(), 22u);
}

TEST_F(PrefetchOrder, TheSessionItselfTakesOver) {
  Prefetch("ahead");
  engine_.RunFor(0.105);
  const auto ahead = engine_.Start("ahead", {}, 1);
  engine_.RunUntil([&] { return ahead->end.has_value(); });
  EXPECT_NEAR(ahead->first_token_s(), 0.3 + 0.006, 0.012);
  EXPECT_LE(engine_.disk().begun().size(), 41u);
}

}  // namespace
}  // namespace cairn
