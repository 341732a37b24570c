// Where computing from the front and loading from disk meet, when a side turns out otherwise than
// planned. Time passes as the test says: a block takes 16 ms to compute, and at first as long to
// load, so that a plan shares a context in two halves.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/timed_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kBlocks = 60;
constexpr double kBlockSeconds = 0.016;

class MeetingPoint : public testing::Test {
 protected:
  MeetingPoint() : engine_(Options()) {
    LoadsTake(milliseconds(16));
    engine_.Prepare("warm", 99, 16);  // from which the disk's time is known
    Finish(engine_.Start("warm", {}, 1));
    engine_.Prepare("back", 1, kBlocks);
    begun_before_ = engine_.disk().begun().size();
  }
  static TimedEngineOptions Options() {
    TimedEngineOptions options;
    options.pass = {.pass_s = 0.0001, .token_s = 0.001};
    options.prefill_chunk = 16;
    return options;
  }
  void LoadsTake(std::chrono::nanoseconds time) {
    engine_.disk().read_time = [time](const BlockIdentity&) { return time; };
  }
  void Finish(const std::shared_ptr<TimedSink>& sink) {
    engine_.RunUntil([&] { return sink->end.has_value(); });
  }
  int64_t CountOf(BlockFate fate) {
    const auto report = engine_.core().ExplainRestore({.id = "back", .last = true});
    EXPECT_TRUE(report.ok());
    return report.ok() ? std::ranges::count(report->blocks, fate, &BlockReport::fate) : -1;
  }
  // How many blocks were read since the session was asked for; each of them once.
  size_t ReadOnce() {
    const auto begun = std::span(engine_.disk().begun()).subspan(begun_before_);
    std::set<uint32_t> positions;
    for (const TimedDisk::Begun& read : begun) positions.insert(read.block.first_position);
    EXPECT_EQ(positions.size(), begun.size()) << "something was read again";
    return begun.size();
  }

  TimedEngine engine_;
  size_t begun_before_ = 0;
};

TEST_F(MeetingPoint, IsInTheMiddleWhenBothSidesKeepTheirTime) {
  const auto back = engine_.Start("back", {}, 1);
  Finish(back);
  EXPECT_NEAR(static_cast<double>(CountOf(BlockFate::kReloaded)), kBlocks / 2.0, 2);
  EXPECT_NEAR(back->first_token_s(), kBlockSeconds * kBlocks / 2, 0.04);
  EXPECT_LE(ReadOnce(), kBlocks / 2 + 2);
}

TEST_F(MeetingPoint, IsToldWithWhenEachBlockWasInPlace) {
  Finish(engine_.Start("back", {}, 1));
  const RestoreReport report = *engine_.core().ExplainRestore({.id = "back", .last = true});
  std::chrono::nanoseconds computed{0}, loaded{0};  // the ones before
  for (const BlockReport& block : report.blocks) {
    ASSERT_TRUE(block.actual_time);
    auto& before = block.fate == BlockFate::kReloaded ? loaded : computed;
    EXPECT_GE(*block.actual_time, before) << "both sides go forward";
    before = *block.actual_time;
  }
  const auto meeting = MeetingPointOf(report);
  ASSERT_TRUE(meeting);
  EXPECT_EQ(meeting->position, CountOf(BlockFate::kRecomputed) * 16);
  EXPECT_EQ(meeting->computed_time, computed);
  EXPECT_EQ(meeting->loaded_time, loaded);
  // The block that is computed while both are waited for.
  EXPECT_LT(std::chrono::abs(loaded - computed), Seconds(2 * kBlockSeconds));
  EXPECT_LE(std::max(computed, loaded), *report.actual_time);
  const auto instants = engine_.ReadTrace("meeting point");
  ASSERT_EQ(instants.size(), 2u);  // the first one is of the session that was to warm up
  EXPECT_NE(instants.back().find("\"ph\":\"i\""), std::string::npos);
  EXPECT_NE(instants.back().find("\"position\":" + std::to_string(meeting->position) + ","),
            std::string::npos);
}

TEST_F(MeetingPoint, MovesToTheEndWhenTheDiskIsLate) {
  const auto back = engine_.Start("back", {}, 1);
  engine_.RunFor(0.1);
  LoadsTake(milliseconds(80));
  Finish(back);
  // 54 blocks are left; computing does five of six.
  EXPECT_NEAR(static_cast<double>(CountOf(BlockFate::kReloaded)), 6 + 48 / 6.0, 5);
  EXPECT_LT(back->first_token_s(), kBlockSeconds * kBlocks) << "never slower than computing it all";
  EXPECT_LE(ReadOnce(), 20u);
}

TEST_F(MeetingPoint, MovesToTheFrontWhenTheDiskIsAhead) {
  const auto back = engine_.Start("back", {}, 1);
  engine_.RunFor(0.1);
  LoadsTake(milliseconds(2));
  Finish(back);
  EXPECT_GT(CountOf(BlockFate::kReloaded), 40);
  EXPECT_LT(back->first_token_s(), 0.8 * kBlockSeconds * kBlocks / 2);
  EXPECT_LE(ReadOnce(), kBlocks);
}

TEST_F(MeetingPoint, MovesWhenComputingIsLate) {
  const auto back = engine_.Start("back", {}, 1);
  engine_.RunFor(0.1);
  engine_.pass.token_s = 0.005;
  Finish(back);
  EXPECT_GT(CountOf(BlockFate::kReloaded), 36);
  EXPECT_LT(back->first_token_s(), 0.1 + kBlockSeconds * kBlocks) << "never slower than loading";
}

TEST_F(MeetingPoint, ALoadThatStallsIsComputedAndNothingElseIsBegunAgain) {
  int reads = 0;
  engine_.disk().read_time = [&](const BlockIdentity&) -> std::chrono::nanoseconds {
    return ++reads == 10 ? std::chrono::nanoseconds(std::chrono::seconds(8)) : milliseconds(16);
  };
  const auto back = engine_.Start("back", {}, 1);
  Finish(back);
  EXPECT_EQ(CountOf(BlockFate::kReloaded), 9);
  EXPECT_EQ(CountOf(BlockFate::kRecomputed), kBlocks - 9);
  EXPECT_LT(back->first_token_s(), 1.1 * kBlockSeconds * (kBlocks - 9));
  EXPECT_EQ(ReadOnce(), 10u);
  EXPECT_EQ(engine_.blocks().stats().in_flight, 1u);  // the disk still writes there
  engine_.RunFor(8);
  EXPECT_EQ(engine_.blocks().stats().in_flight, 0u);
}

TEST_F(MeetingPoint, APrefetchIsPredictedWithTheTailThatItComputes) {
  engine_.disk().read_time = [](const BlockIdentity&) { return milliseconds(16); };
  const Content more = RandomTokens(8, 40);
  ASSERT_TRUE(
      engine_.core()
          .AppendContent({.id = "back", .content = more}, *engine_.core().encoder().Encode(more))
          .ok());
  ASSERT_TRUE(engine_.core().PrefetchSession("back", engine_.NextId()).ok());
  engine_.RunUntil([&] { return engine_.core().stream_count() == 0; });
  const auto report = engine_.core().ExplainRestore({.id = "back", .last = true});
  ASSERT_TRUE(report.ok());
  const double actual_s = std::chrono::duration<double>(*report->actual_time).count();
  EXPECT_NEAR(report->predicted_s, actual_s, 0.02);  // half of what the tail takes
  const auto turn = engine_.Start("back", {}, 1);
  Finish(turn);
  EXPECT_EQ(turn->end->usage.device_tokens, turn->end->usage.prompt_tokens);  // tail and all
}

TEST_F(MeetingPoint, ACancelAtAnyMomentFreesEverything) {
  for (int moment = 0; moment < 25; ++moment) {
    const auto back = engine_.Start("back", {}, 1);
    const SequenceId id = engine_.last_stream();
    engine_.RunFor(0.02 * moment);
    engine_.core().CancelStream(id, Status(Code::kCancelled, "by the test"));
    EXPECT_TRUE(back->end);
    engine_.RunFor(0.02);  // the one load that had begun
    const BlockStoreStats stats = engine_.blocks().stats();
    EXPECT_EQ(stats.filling + stats.held_hot + stats.busy + stats.in_flight, 0u) << moment;
    EXPECT_EQ(stats.free + stats.evictable, stats.capacity);
    EXPECT_EQ(engine_.blocks().disk_flow().under_way, 0u);
    EXPECT_TRUE(Suspend(engine_.core(), "back", Tier::kDisk).ok());
  }
}

// What fits into one pass does not wait for the blocks of new tokens, which come after all loads.
TEST(MeetingPointOfFewBlocks, IsInTheMiddleWithNewTokensBehind) {
  TimedEngineOptions options;
  options.pass = {.pass_s = 0.0001, .token_s = 0.001};
  options.prefill_chunk = 256;
  TimedEngine engine(options);
  engine.disk().read_time = [](const BlockIdentity&) { return milliseconds(16); };
  const auto finish = [&](const std::shared_ptr<TimedSink>& sink) {
    engine.RunUntil([&] { return sink->end.has_value(); });
  };
  engine.Prepare("warm", 99, 16);
  finish(engine.Start("warm", {}, 1));
  engine.Prepare("back", 1, 12);
  const auto back = engine.Start("back", RandomTokens(7, 40), 1);
  finish(back);
  EXPECT_NEAR(back->first_token_s(), 6 * kBlockSeconds + 0.040, 0.02);
  const auto report = engine.core().ExplainRestore({.id = "back", .last = true});
  ASSERT_TRUE(report.ok());
  EXPECT_NEAR(report->predicted_s, back->first_token_s(), 0.01);
  EXPECT_NEAR(static_cast<double>(
                  std::ranges::count(report->blocks, BlockFate::kReloaded, &BlockReport::fate)),
              6, 1);
}

}  // namespace
}  // namespace cairn
