#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace cairn {
namespace {

SequenceView View(uint64_t id, uint32_t rows_left, int32_t priority = 50) {
  return {.id = SequenceId(id), .rows_left = rows_left, .priority = priority};
}

uint32_t RowsOf(const std::vector<StepShare>& plan, uint64_t id) {
  for (const StepShare& share : plan) {
    if (share.id == SequenceId(id)) return share.row_count;
  }
  return 0;
}

TEST(PlanStep, NothingFromNothing) { EXPECT_TRUE(PlanStep({}, {.prefill_rows = 64}).empty()); }

TEST(PlanStep, EveryDecodeRowRunsAndTheChunkComesOnTop) {
  const std::vector<SequenceView> views = {View(1, 1), View(2, 1000), View(3, 1)};
  const auto plan = PlanStep(views, {.prefill_rows = 64});
  EXPECT_EQ(RowsOf(plan, 1), 1u);
  EXPECT_EQ(RowsOf(plan, 2), 64u);
  EXPECT_EQ(RowsOf(plan, 3), 1u);
}

TEST(PlanStep, AShortPromptDoesNotWaitForALongOne) {
  const std::vector<SequenceView> views = {View(1, 8000), View(2, 40)};
  const auto plan = PlanStep(views, {.prefill_rows = 256});
  EXPECT_EQ(RowsOf(plan, 2), 40u);
  EXPECT_EQ(RowsOf(plan, 1), 216u);
}

TEST(PlanStep, TheFirstAlwaysGetsOn) {
  std::vector<SequenceView> views = {View(1, 8000)};
  for (uint64_t id = 2; id < 30; ++id) views.push_back(View(id, 300));
  EXPECT_GE(RowsOf(PlanStep(views, {.prefill_rows = 256}), 1), 64u);
}

TEST(PlanStep, PriorityDecidesWhoIsFirst) {
  const std::vector<SequenceView> views = {View(1, 8000), View(2, 8000, 90)};
  EXPECT_GE(RowsOf(PlanStep(views, {.prefill_rows = 256}), 2), 64u);
}

// For random batches: nobody gets more than it has left, every decode row is there, and the whole
// chunk is used while somebody can use it.
TEST(PlanStep, KeepsItsBounds) {
  Rng rng(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SequenceView> views;
    uint64_t prefill_left = 0;
    for (uint64_t id = 0, count = rng.Below(12); id < count; ++id) {
      const uint32_t left = rng.Chance(0.4) ? 1 : static_cast<uint32_t>(2 + rng.Below(900));
      views.push_back(View(id, left, static_cast<int32_t>(rng.Below(3))));
      if (left > 1) prefill_left += left;
    }
    const uint32_t chunk = static_cast<uint32_t>(1 + rng.Below(512));
    const auto plan = PlanStep(views, {.prefill_rows = chunk});
    uint64_t prefill_rows = 0;
    for (const SequenceView& view : views) {
      const uint32_t rows = RowsOf(plan, view.id.value());
      EXPECT_LE(rows, view.rows_left);
      if (view.rows_left == 1) {
        EXPECT_EQ(rows, 1u);
      } else {
        prefill_rows += rows;
      }
    }
    EXPECT_EQ(prefill_rows, std::min<uint64_t>(chunk, prefill_left));
    EXPECT_TRUE(std::is_sorted(plan.begin(), plan.end(),
                               [](const auto& a, const auto& b) { return a.id < b.id; }));
  }
}

TEST(PlanStep, RestoresKeepToTheirBudgetAndPromptsDoNot) {
  SequenceView restore = View(2, 1000);
  restore.restore_rows = 900;
  const std::vector<SequenceView> views = {View(1, 1), restore, View(3, 300)};
  const auto plan = PlanStep(views, {.prefill_rows = 256, .restore_rows = 32});
  EXPECT_EQ(RowsOf(plan, 1), 1u);
  EXPECT_EQ(RowsOf(plan, 2), 8u);  // a quarter; the shorter prompt comes first
  EXPECT_EQ(RowsOf(plan, 3), 248u);
  EXPECT_EQ(RowsOf(PlanStep({&restore, 1}, {.prefill_rows = 256, .restore_rows = 32}), 2), 32u);
  EXPECT_TRUE(PlanStep({&restore, 1}, {.prefill_rows = 256, .restore_rows = 0}).empty());
}

TEST(PlanStep, ARestoreThatEndsWithinItsBudgetGoesOnWithItsPrompt) {
  SequenceView restore = View(1, 100);
  restore.restore_rows = 20;
  const auto rows = [&](const StepBudget& budget) {
    return RowsOf(PlanStep({&restore, 1}, budget), 1);
  };
  EXPECT_EQ(rows({.prefill_rows = 256, .restore_rows = 19}), 19u);
  EXPECT_EQ(rows({.prefill_rows = 256, .restore_rows = 20}), 100u);
  EXPECT_EQ(rows({.prefill_rows = 64, .restore_rows = 20}), 64u);
}

TEST(PlanStep, RestoresGoByTheirTurns) {
  std::vector<SequenceView> views = {View(1, 90), View(2, 100), View(3, 300)};
  for (SequenceView& view : views) view.restore_rows = view.rows_left;
  views[0].turn = 2;
  views[1].turn = 1;
  views[2].turn = 0;
  views.push_back(View(4, 50));  // a prompt that is shorter than any
  const auto plan = PlanStep(views, {.prefill_rows = 256});
  EXPECT_EQ(RowsOf(plan, 1), 64u);  // a quarter, since it came first
  EXPECT_EQ(RowsOf(plan, 4), 50u);
  EXPECT_EQ(RowsOf(plan, 3), 142u);
  EXPECT_EQ(RowsOf(plan, 2), 0u);
}

// For random batches: restores never get more than their budget, and all of it while they can use
// it and the step has room.
TEST(PlanStep, TheBudgetOfRestoresIsKeptAndUsed) {
  Rng rng(6);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SequenceView> views;
    uint64_t restore_left = 0;
    for (uint64_t id = 0, count = 1 + rng.Below(8); id < count; ++id) {
      SequenceView view = View(id, static_cast<uint32_t>(2 + rng.Below(300)));
      view.restore_rows =
          rng.Chance(0.5) ? view.rows_left : static_cast<uint32_t>(rng.Below(view.rows_left));
      restore_left += view.restore_rows;
      views.push_back(view);
    }
    const StepBudget budget{.prefill_rows = 4096,
                            .restore_rows = static_cast<uint32_t>(rng.Below(400))};
    const auto plan = PlanStep(views, budget);
    uint64_t restored = 0;
    for (const SequenceView& view : views) {
      const uint32_t rows = RowsOf(plan, view.id.value());
      EXPECT_LE(rows, view.rows_left);
      restored += std::min(rows, view.restore_rows);
      if (view.restore_rows == 0) {
        EXPECT_EQ(rows, view.rows_left);
      }
    }
    EXPECT_EQ(restored, std::min<uint64_t>(budget.restore_rows, restore_left));
  }
}

TEST(PickPreempted, LowestPriorityThenLatest) {
  const std::vector<SequenceView> holders = {View(1, 1), View(2, 1, 10), View(3, 1, 10),
                                             View(4, 1)};
  EXPECT_EQ(PickPreempted(holders, holders[0]), SequenceId(3));
  EXPECT_EQ(PickPreempted(holders, holders[1]), SequenceId(3));
  EXPECT_EQ(PickPreempted(holders, holders[2]), SequenceId(3));
  const std::vector<SequenceView> equals = {View(1, 1), View(2, 1)};
  EXPECT_EQ(PickPreempted(equals, equals[0]), SequenceId(2));
  EXPECT_EQ(PickPreempted(equals, equals[1]), SequenceId(2));
}

}  // namespace
}  // namespace cairn
