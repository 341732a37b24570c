#include "engine/restore_log.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/restore_strategy.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

RestoreReport Carried(Execution execution, double predicted_s, milliseconds actual,
                      std::initializer_list<BlockFate> fates) {
  RestoreReport report{.execution = execution, .predicted_s = predicted_s, .actual_time = actual};
  for (const BlockFate fate : fates) report.blocks.push_back({.fate = fate});
  return report;
}

TEST(RestoreLog, RemembersTheLastOfEachSessionAndCountsAll) {
  RestoreLog log;
  EXPECT_EQ(log.Find("a"), nullptr);
  log.Add("a", Carried(Execution::kFront, 0.5, milliseconds(600),
                       {BlockFate::kKept, BlockFate::kReloaded, BlockFate::kReloaded}));
  log.Add("a", Carried(Execution::kFront, 0.25, milliseconds(100), {BlockFate::kReloadFailed}));
  log.Add("", Carried(Execution::kLoadAll, 1, milliseconds(1), {BlockFate::kRecomputed}));
  ASSERT_NE(log.Find("a"), nullptr);
  EXPECT_EQ(log.Find("a")->actual_time, milliseconds(100));
  EXPECT_EQ(log.Find(""), nullptr);
  const auto& front = log.counts().by_execution[static_cast<size_t>(Execution::kFront)];
  EXPECT_EQ(front.restores, 2);
  EXPECT_EQ(front.predicted, milliseconds(750));
  EXPECT_EQ(front.actual, milliseconds(700));
  EXPECT_EQ(log.counts().by_execution[static_cast<size_t>(Execution::kLoadAll)].restores, 1);
  EXPECT_EQ(log.counts().blocks, (std::array<int64_t, 4>{1, 2, 1, 1}));
  std::array<int64_t, 13> ratios{};
  ratios[4] = 1;  // 0.5 s and 0.6 s
  ratios[10] = 1;
  ratios[12] = 1;
  EXPECT_EQ(log.counts().restores.counts(), ratios);
  log.AddPass(1, 2);
  EXPECT_EQ(log.counts().passes.counts()[2], 1);
  log.Forget("a");
  log.Forget("a");
  EXPECT_EQ(log.Find("a"), nullptr);
  EXPECT_EQ(front.restores, 2);
}

TEST(RestoreLog, CountsNoBlocksThatAreNew) {
  RestoreLog log;
  RestoreReport report = Carried(Execution::kFront, 1, milliseconds(1),
                                 {BlockFate::kRecomputed, BlockFate::kReloaded});
  report.blocks.push_back({.fate = BlockFate::kRecomputed, .is_new = true});
  log.Add("a", report);
  EXPECT_EQ(log.counts().blocks, (std::array<int64_t, 4>{0, 1, 1, 0}));
}

TEST(RestoreLog, ForgetsTheSessionThatHasNotComeBackForLongest) {
  RestoreLog log;
  const auto name = [](size_t i) { return "s" + std::to_string(i); };
  const auto add = [&](size_t i) {
    log.Add(name(i), Carried(Execution::kFront, 1, milliseconds(1), {}));
  };
  for (size_t i = 0; i < RestoreLog::kReportsMax; ++i) add(i);
  add(0);  // again: now 1 is the oldest
  add(RestoreLog::kReportsMax);
  EXPECT_NE(log.Find(name(0)), nullptr);
  EXPECT_EQ(log.Find(name(1)), nullptr);
  EXPECT_NE(log.Find(name(2)), nullptr);
  EXPECT_NE(log.Find(name(RestoreLog::kReportsMax)), nullptr);
}

TEST(RestoreReport, HasThePricesOfThePlanWhereThereIsAChoice) {
  RestorePlan plan{
      .execution = Execution::kFront,
      .verdicts = {Verdict::kKeep, Verdict::kRecompute, Verdict::kRecompute, Verdict::kReload},
      .predicted_s = 1,
      .load_all_s = 2,
      .recompute_all_s = 3};
  plan.prices = {.reload_s = {0.5, 0.25}, .recompute_s = 1, .recompute_s_per_block = 0.125};
  const std::vector<Origin> origins = {Origin::kResident, Origin::kAbsent, Origin::kDisk,
                                       Origin::kHost};
  const std::vector<Tier> tiers = {Tier::kHost, Tier::kAbsent, Tier::kDisk, Tier::kHost};
  const RestoreReport report = ReportOf(plan, origins, tiers, 16, 64);
  EXPECT_EQ(report.execution, Execution::kFront);
  EXPECT_EQ(report.load_all_s, 2);
  ASSERT_EQ(report.blocks.size(), 4u);
  EXPECT_EQ(report.blocks[0].fate, BlockFate::kKept);
  EXPECT_EQ(report.blocks[0].recompute_s, std::nullopt);
  EXPECT_EQ(report.blocks[1].fate, BlockFate::kRecomputed);
  EXPECT_EQ(report.blocks[1].reload_s, std::nullopt);
  EXPECT_EQ(report.blocks[1].recompute_s, 1.125);
  EXPECT_EQ(report.blocks[2].fate, BlockFate::kRecomputed);
  EXPECT_EQ(report.blocks[2].reload_s, 0.25);
  EXPECT_EQ(report.blocks[3].fate, BlockFate::kReloaded);
  EXPECT_EQ(report.blocks[3].reload_s, 0.5);
  EXPECT_EQ(report.blocks[3].tier, Tier::kHost);
}

TEST(RestoreReport, BothSidesMeetBehindTheLastBlockThatWasComputed) {
  RestoreReport report{.block_tokens = 16};
  const auto add = [&](BlockFate fate, int after) {
    report.blocks.push_back({.fate = fate, .actual_time = milliseconds(after)});
  };
  report.blocks.push_back({.fate = BlockFate::kKept});
  add(BlockFate::kRecomputed, 30);
  EXPECT_FALSE(MeetingPointOf(report)) << "nothing was loaded";
  add(BlockFate::kReloaded, 80);
  add(BlockFate::kReloadFailed, 90);
  add(BlockFate::kReloaded, 70);
  report.blocks.push_back({.fate = BlockFate::kKept});
  add(BlockFate::kRecomputed, 100);
  report.blocks.back().is_new = true;
  const std::optional<MeetingPoint> meeting = MeetingPointOf(report);
  ASSERT_TRUE(meeting);
  EXPECT_EQ(meeting->position, 4 * 16);
  EXPECT_EQ(meeting->computed_time, milliseconds(90));
  EXPECT_EQ(meeting->loaded_time, milliseconds(80));
}

TEST(RestoreReport, SaysThatNothingIsMissingWhateverThePlanIsCalled) {
  const RestorePlan plan{.execution = Execution::kLoadAll, .verdicts = {Verdict::kKeep}};
  const RestoreReport report =
      ReportOf(plan, std::vector{Origin::kResident}, std::vector{Tier::kDevice}, 16, 16);
  EXPECT_EQ(report.execution, Execution::kNone);
}

// A planner takes absent blocks at the end for new tokens, or new ones for absent blocks.
TEST(RestoreReport, TellsLostBlocksFromNewOnesWhateverThePlanIsCalled) {
  const std::vector<Origin> origins = {Origin::kResident, Origin::kAbsent, Origin::kAbsent};
  const std::vector<Tier> tiers = {Tier::kDevice, Tier::kAbsent, Tier::kAbsent};
  for (const Execution planned : {Execution::kNone, Execution::kRecomputeAll}) {
    const RestorePlan plan{.execution = planned,
                           .verdicts = {Verdict::kKeep, Verdict::kRecompute, Verdict::kRecompute},
                           .no_wave = NoWave::kNothingToLoad};
    for (const size_t computed_count : {16u, 31u, 32u, 47u, 48u}) {
      const RestoreReport report = ReportOf(plan, origins, tiers, 16, computed_count);
      const bool is_restore = computed_count >= 32;  // of a whole block
      EXPECT_EQ(report.execution, is_restore ? Execution::kRecomputeAll : Execution::kNone);
      EXPECT_EQ(report.no_wave, is_restore ? NoWave::kNothingToLoad : NoWave::kNone);
      EXPECT_FALSE(report.blocks[0].is_new);
      EXPECT_EQ(report.blocks[1].is_new, !is_restore);
      EXPECT_EQ(report.blocks[2].is_new, computed_count < 48);
      EXPECT_EQ(report.computed_count, computed_count);
    }
  }
}

}  // namespace
}  // namespace cairn
