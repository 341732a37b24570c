// Reports of restores and their counts, as the wire has them.
#include <gtest/gtest.h>

#include <chrono>

#include "service/wire.h"

namespace cairn {
namespace {

TEST(WireRestore, ReportsArriveWhole) {
  RestoreReport report{.execution = Execution::kFront,
                       .block_tokens = 16,
                       .token_count = 50,
                       .computed_count = 40,
                       .predicted_s = 0.25,
                       .load_all_s = 0.5,
                       .recompute_all_s = 1.5,
                       .planning_time = std::chrono::microseconds(40)};
  report.blocks = {{.tier = Tier::kDevice, .fate = BlockFate::kKept},
                   {.tier = Tier::kAbsent, .fate = BlockFate::kRecomputed, .recompute_s = 0.125},
                   {.tier = Tier::kDisk,
                    .fate = BlockFate::kReloadFailed,
                    .reload_s = 0.5,
                    .recompute_s = 0.25,
                    .actual_time = std::chrono::milliseconds(120)}};
  v1::RestoreReport proto = ToProto(report);
  EXPECT_EQ(proto.execution(), v1::RestoreReport::EXECUTION_FRONT);
  EXPECT_EQ(proto.predicted_time().nanos(), 250'000'000);
  EXPECT_EQ(proto.predicted_load_all_time().nanos(), 500'000'000);
  EXPECT_EQ(proto.predicted_recompute_all_time().seconds(), 1);
  EXPECT_EQ(proto.planning_time().nanos(), 40'000);
  EXPECT_FALSE(proto.has_actual_time());
  EXPECT_EQ(proto.block_tokens(), 16);
  EXPECT_EQ(proto.token_count(), 50);
  EXPECT_EQ(proto.computed_tokens(), 40);
  ASSERT_EQ(proto.blocks_size(), 3);
  EXPECT_EQ(proto.blocks(0).verdict(), v1::BlockDecision::VERDICT_KEEP);
  EXPECT_FALSE(proto.blocks(0).has_recompute_price());
  EXPECT_EQ(proto.blocks(1).first_position(), 16);
  EXPECT_EQ(proto.blocks(1).tier(), v1::TIER_ABSENT);
  EXPECT_EQ(proto.blocks(1).verdict(), v1::BlockDecision::VERDICT_RECOMPUTE);
  EXPECT_FALSE(proto.blocks(1).has_reload_price());
  EXPECT_EQ(proto.blocks(1).recompute_price().nanos(), 125'000'000);
  EXPECT_EQ(proto.blocks(2).tier(), v1::TIER_DISK);
  EXPECT_EQ(proto.blocks(2).verdict(), v1::BlockDecision::VERDICT_RELOAD_FAILED_RECOMPUTED);
  EXPECT_EQ(proto.blocks(2).reload_price().nanos(), 500'000'000);
  EXPECT_EQ(proto.blocks(2).actual_time().nanos(), 120'000'000);
  EXPECT_FALSE(proto.blocks(0).has_actual_time());
  report.execution = Execution::kNone;
  report.actual_time = std::chrono::milliseconds(300);
  proto = ToProto(report);
  EXPECT_EQ(proto.execution(), v1::RestoreReport::EXECUTION_NONE);
  EXPECT_EQ(proto.actual_time().nanos(), 300'000'000);
}

TEST(WireRestore, CountsArriveWhole) {
  EngineStats stats;
  EXPECT_EQ(ToProto(stats).restores_size() + ToProto(stats).restored_blocks_size(), 0);
  stats.restores.by_execution[static_cast<size_t>(Execution::kWave)] = {
      .restores = 2, .predicted = std::chrono::seconds(3), .actual = std::chrono::seconds(4)};
  stats.restores.blocks[static_cast<size_t>(BlockFate::kReloaded)] = 7;
  const v1::CacheStats counts = ToProto(stats);
  ASSERT_EQ(counts.restores_size(), 1);
  EXPECT_EQ(counts.restores(0).execution(), v1::RestoreReport::EXECUTION_WAVE);
  EXPECT_EQ(counts.restores(0).restore_count(), 2);
  EXPECT_EQ(counts.restores(0).predicted_time().seconds(), 3);
  EXPECT_EQ(counts.restores(0).actual_time().seconds(), 4);
  ASSERT_EQ(counts.restored_blocks_size(), 1);
  EXPECT_EQ(counts.restored_blocks(0).verdict(), v1::BlockDecision::VERDICT_RELOAD);
  EXPECT_EQ(counts.restored_blocks(0).block_count(), 7);

  EXPECT_FALSE(counts.has_restore_predictions());
  EXPECT_FALSE(counts.has_pass_predictions());
  stats.restores.restores.Note(1, 1);
  stats.restores.passes.Note(3, 1);
  stats.tiers.resize(2);
  stats.tiers[1].loads.Note(100, 1);
  const v1::CacheStats predicted = ToProto(stats);
  ASSERT_EQ(predicted.restore_predictions().upper_bounds_size(), 12);
  ASSERT_EQ(predicted.restore_predictions().counts_size(), 13);
  EXPECT_EQ(predicted.restore_predictions().upper_bounds(6), 1.05);
  EXPECT_EQ(predicted.restore_predictions().counts(6), 1);
  EXPECT_EQ(predicted.pass_predictions().counts(10), 1);
  EXPECT_FALSE(predicted.tiers(0).has_load_predictions());
  EXPECT_EQ(predicted.tiers(1).load_predictions().counts(12), 1);
}

TEST(WireRestore, TheLastRestoreIsAskedFor) {
  v1::ExplainRestoreRequest request;
  request.set_name("sessions/a");
  EXPECT_EQ(FromProto(request)->id, "a");
  EXPECT_FALSE(FromProto(request)->last);
  request.set_last(true);
  EXPECT_TRUE(FromProto(request)->last);
}

}  // namespace
}  // namespace cairn
