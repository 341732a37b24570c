// Passes that begin with what is there, or wait for more: how work is cut into them, and that an
// engine does as it is planned.
#include "offload/early_passes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/timed_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;

// A pass takes 10 s up to 100 tokens, and beyond 0.1 s a token.
constexpr PassCosts kCosts{.sweep_s = 10, .token_s = 0.1};

TEST(EarlyPassesTest, NothingIsOverWhenItMayBegin) {
  EarlyPasses passes(kCosts, 64);
  passes.Clear(3);
  EXPECT_EQ(passes.end_s(), 3);
  EXPECT_EQ(passes.FirstPassCount(), 0u);
}

TEST(EarlyPassesTest, WhatIsThereIsDoneInAsFewPassesAsHoldIt) {
  EarlyPasses passes(kCosts, 64);
  passes.Clear(0);
  for (int i = 0; i < 9; ++i) passes.Add(16, 0, 0);
  EXPECT_EQ(passes.end_s(), 30);
}

TEST(EarlyPassesTest, APassWaitsForWhatComesSoon) {
  EarlyPasses passes(kCosts, 64);
  passes.Clear(0);
  passes.Add(16, 0, 0);
  passes.Add(16, 0, 9);
  EXPECT_EQ(passes.end_s(), 19);
  EXPECT_EQ(passes.FirstPassCount(), 2u);
}

TEST(EarlyPassesTest, APassDoesNotWaitForWhatComesAfterItsEnd) {
  EarlyPasses passes(kCosts, 64);
  passes.Clear(0);
  passes.Add(16, 0, 0);
  passes.Add(16, 0, 10);
  EXPECT_EQ(passes.end_s(), 20);
  EXPECT_EQ(passes.FirstPassCount(), 1u);
}

TEST(EarlyPassesTest, WaitingForTheNextDoesNotPayButForThoseAfterIt) {
  EarlyPasses passes(kCosts, 64);
  passes.Clear(0);
  for (const double ready : {0.0, 6.0, 11.0, 16.0}) passes.Add(16, 0, ready);
  EXPECT_EQ(passes.end_s(), 26) << "two passes: the last one over everything that came meanwhile";
  EXPECT_EQ(passes.FirstPassCount(), 2u);
}

TEST(EarlyPassesTest, WhatDoesNotFitIsAPassOfItsOwn) {
  EarlyPasses passes(kCosts, 64);
  passes.Clear(1);
  passes.Add(16, 0, 0);
  passes.Add(1000, 0, 0);
  EXPECT_EQ(passes.end_s(), 1 + 10 + 100);
  EXPECT_EQ(passes.FirstPassCount(), 1u);
}

TEST(EarlyPassesTest, PositionsCount) {
  const PassCosts costs{.pass_s = 1, .token_position_s = 0.5};
  EarlyPasses passes(costs, 32);
  passes.Clear(0);
  passes.Add(16, 4, 0);
  passes.Add(16, 6, 0);
  EXPECT_EQ(passes.end_s(), 1 + 5);
}

// Eight blocks on a disk that reads one in 10 ms, and 16 new tokens; any pass of four blocks takes
// 100 ms. The best plan loads five, and computes three and the new tokens in one pass then: 150 ms.
// Beginning with the three at once would take 200 ms, loading everything 180 ms.
TEST(EarlyPassesTest, AnEngineWaitsWhereItIsPlanned) {
  TimedEngine engine({.pass = {.sweep_s = 0.1, .token_s = 0.001}, .prefill_chunk = 64});
  engine.disk().read_time = [](const BlockIdentity&) { return milliseconds(10); };
  const auto finish = [&](const std::shared_ptr<TimedSink>& sink) {
    engine.RunUntil([&] { return sink->end.has_value(); });
  };
  engine.Prepare("warm", 99, 16);  // from which the disk's time is known
  finish(engine.Start("warm", {}, 1));
  engine.Prepare("back", 1, 8);
  const auto back = engine.Start("back", RandomTokens(5, 15), 1);
  finish(back);
  EXPECT_NEAR(back->first_token_s(), 0.15, 0.002);
  const RestoreReport report = *engine.core().ExplainRestore({.id = "back", .last = true});
  EXPECT_NEAR(report.predicted_s, 0.15, 0.003);
  EXPECT_EQ(std::ranges::count(report.blocks, BlockFate::kReloaded, &BlockReport::fate), 5);
}

}  // namespace
}  // namespace cairn
