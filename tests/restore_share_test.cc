// What restores may take from running streams: the bucket by itself, and in a whole engine.
#include "engine/restore_share.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/timed_engine.h"

namespace cairn {
namespace {

constexpr uint32_t kBlock = 16;
constexpr PassCosts kCosts{.pass_s = 0.002, .sweep_s = 0.004, .token_s = 0.001};

TEST(RestoreShare, NoStreamsNoLimit) {
  RestoreShare share(0.2, kBlock);
  share.SetCosts(kCosts);
  EXPECT_EQ(share.RowsMax(0, 1000, 256), 256u);
  share.Note({.rows = 256, .seconds = 0.258}, {.rows = 256}, 0, true);
  EXPECT_EQ(share.RowsMax(4, 0, 256), kBlock)
      << "what was computed while no stream ran is not owed";
}

TEST(RestoreShare, ABlockIsLetInAndPaidBack) {
  RestoreShare share(0.2, kBlock);
  share.SetCosts(kCosts);
  EXPECT_EQ(share.RowsMax(4, 0, 256), kBlock);
  share.Note({.rows = 20, .seconds = 0.022}, {.rows = 16}, 4, true);  // 6 ms of streams, 16 ms more
  // 16 - 1.5 ms are owed, and each pass of the streams alone pays 1.5 ms.
  for (int pass = 0; pass < 10; ++pass) {
    EXPECT_EQ(share.RowsMax(4, 0, 256), 0u) << pass;
    share.Note({.rows = 4, .seconds = 0.006}, {}, 4, true);
  }
  EXPECT_EQ(share.RowsMax(4, 0, 256), kBlock);
}

TEST(RestoreShare, RowsBelowTheRidgeCostNothing) {
  RestoreShare share(0.2, kBlock);
  share.SetCosts({.pass_s = 0.001, .sweep_s = 0.1, .token_s = 0.001});
  EXPECT_EQ(share.RowsMax(20, 0, 256), 80u);
  share.Note({.rows = 100, .seconds = 0.101}, {.rows = 80}, 20, true);
  EXPECT_EQ(share.RowsMax(20, 0, 256), 96u) << "25 ms were earned";
}

// A block at the end of a long context takes its attention with it.
TEST(RestoreShare, PositionsCount) {
  RestoreShare share(0.5, kBlock);
  share.SetCosts({.token_s = 1e-4, .token_position_s = 1e-7});
  share.Note({.rows = 500, .seconds = 0.05}, {}, 500, true);
  EXPECT_EQ(share.RowsMax(500, 0, 512), 400u);    // 0.1 to 0.14 ms a row, for 50 ms
  EXPECT_EQ(share.RowsMax(500, 9000, 512), 48u);  // 1 ms a row
}

TEST(RestoreShare, UnknownCostsLetInABlockAtATime) {
  RestoreShare share(0.2, kBlock);
  EXPECT_EQ(share.RowsMax(4, 0, 256), kBlock);
  share.Note({.rows = 20, .seconds = 0.02}, {.rows = 16}, 4, true);  // counted by rows: 4 of 20
  for (int pass = 0; pass < 15; ++pass) {
    EXPECT_EQ(share.RowsMax(4, 0, 256), 0u) << pass;
    share.Note({.rows = 4, .seconds = 0.004}, {}, 4, true);
  }
  EXPECT_EQ(share.RowsMax(4, 0, 256), kBlock);
}

// A step of four streams takes 8 ms where its pass should take 6, and 10 ms beside loads: of those
// two ms restores owe as much as of their rows.
TEST(RestoreShare, WhatLoadsCostTheStreamsIsOwedToo) {
  RestoreShare share(0.2, kBlock);
  share.SetCosts(kCosts);
  for (int step = 0; step < 100; ++step) share.Note({.rows = 4, .seconds = 0.008}, {}, 4, false);
  share.SetCosts({.pass_s = 0.001, .sweep_s = 0.002, .token_s = 0.001});  // changes nothing of that
  double whole = 0, alone = 0;
  int with_rows = 0;
  while (whole < 20) {
    const uint32_t rows = share.RowsMax(4, 0, kBlock);
    const double seconds = 0.009 + 0.001 * rows;
    share.Note({.rows = 4 + rows, .seconds = seconds}, {.rows = rows}, 4, true);
    whole += seconds;
    alone += 0.008;
    with_rows += rows > 0;
  }
  EXPECT_NEAR(alone / whole, 0.8, 0.005);
  EXPECT_GT(with_rows, 100);
}

// A machine that has become three times as slow looks like loads that cost much: rows still come.
TEST(RestoreShare, RestoresGoOnOnASlowerMachine) {
  RestoreShare share(0.2, kBlock);
  share.SetCosts(kCosts);
  for (int step = 0; step < 100; ++step) share.Note({.rows = 4, .seconds = 0.006}, {}, 4, false);
  double whole = 0, of_rows = 0;
  while (whole < 20) {
    const uint32_t rows = share.RowsMax(4, 0, kBlock);
    share.Note({.rows = 4 + rows, .seconds = 0.018 + 0.003 * rows}, {.rows = rows}, 4, true);
    whole += 0.018 + 0.003 * rows;
    of_rows += 0.003 * rows;
  }
  EXPECT_GT(of_rows / whole, 0.02);
}

// Over any second, at any share, however wrong the costs are: what is added stays within the share
// of the whole, but for what may be saved up and one block.
TEST(RestoreShare, StreamsKeepTheirPartOfEverySecond) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    const double part = 0.05 + 0.9 * rng.Uniform();
    RestoreShare share(part, kBlock);
    share.SetCosts(kCosts);
    const PassCosts truth{
        .pass_s = 0.002, .sweep_s = 0.004, .token_s = 0.001 * (0.5 + rng.Uniform())};
    std::vector<std::pair<double, double>> passes;  // with restores, and without
    for (double now = 0; now < 3;) {
      const auto streams = static_cast<uint32_t>(1 + rng.Below(8));
      const uint32_t rows =
          rng.Chance(0.2) ? 0 : share.RowsMax(streams, 0, static_cast<uint32_t>(rng.Below(256)));
      const double seconds = truth.FixedSeconds(streams + rows);
      share.Note({.rows = streams + rows, .seconds = seconds}, {.rows = rows}, streams, true);
      passes.emplace_back(seconds, truth.FixedSeconds(streams));
      now += seconds;
    }
    for (size_t begin = 0; begin < passes.size(); begin += 7) {
      double whole = 0, alone = 0;
      for (size_t i = begin; i < passes.size() && whole < 1; ++i) {
        whole += passes[i].first;
        alone += passes[i].second;
      }
      if (whole < 1) break;
      const double allowed = part / (1 - part) * alone + 0.04;
      // The split of a pass is predicted, and the truth is up to twice or half of that.
      EXPECT_LE(whole - alone, 1.6 * allowed) << part << " from pass " << begin;
    }
  }
}

TEST(CostsBesideStreams, AreTheShareOfTheTimeAndWhatIsFree) {
  const PassCosts slowed = CostsBesideStreams(kCosts, 4, 0.2);
  EXPECT_DOUBLE_EQ(slowed.token_s, 0.005);
  EXPECT_EQ(slowed.pass_s + slowed.sweep_s, 0);
  const PassCosts positions{.token_s = 0.001, .token_position_s = 1e-6};
  EXPECT_DOUBLE_EQ(CostsBesideStreams(positions, 1, 0.25).token_position_s, 4e-6);
  // 96 rows for nothing in each pass of 101 ms, and 25 more for a quarter of that.
  const PassCosts ridge{.pass_s = 0.001, .sweep_s = 0.1, .token_s = 0.001};
  EXPECT_DOUBLE_EQ(CostsBesideStreams(ridge, 4, 0.2).token_s, 0.12625 / (96 + 25.25));
}

class SharedEngine : public testing::Test {
 protected:
  static constexpr int kStreams = 4;
  static constexpr uint32_t kRestoredBlocks = 40;

  void StartStreams() {
    for (int i = 0; i < kStreams; ++i) {
      const std::string id = "stream" + std::to_string(i);
      engine_.Create(id, RandomTokens(static_cast<uint64_t>(i), 20));
      streams_.push_back(engine_.Start(id, {}, 2000));
    }
    engine_.RunUntil([&] { return !streams_.back()->tokens.empty(); });
  }
  size_t TokensWithin(Clock::Monotonic begin, Clock::Monotonic end) const {
    size_t count = 0;
    for (const auto& stream : streams_) count += stream->CountWithin(begin, end);
    return count;
  }

  TimedEngine engine_;
  std::vector<std::shared_ptr<TimedSink>> streams_;
};

TEST_F(SharedEngine, StreamsKeepFourFifthsOfTheirRateBesideARestoreThatIsPredicted) {
  engine_.Prepare("back", 9, kRestoredBlocks, Tier::kAbsent);
  StartStreams();
  Clock::Monotonic begin = engine_.clock.Now();
  engine_.RunFor(1);
  const auto alone = static_cast<double>(TokensWithin(begin, engine_.clock.Now()));
  EXPECT_NEAR(alone, kStreams / 0.006, kStreams);

  begin = engine_.clock.Now();
  const auto back = engine_.Start("back", {}, 1);
  engine_.RunUntil([&] { return back->end.has_value(); });
  // 16 ms a block: alone 0.65 s, at a fifth of the time five times as long.
  EXPECT_NEAR(back->first_token_s(), 5 * 0.016 * kRestoredBlocks, 0.1);
  const Result<RestoreReport> report = engine_.core().ExplainRestore({.id = "back", .last = true});
  ASSERT_TRUE(report.ok());
  EXPECT_NEAR(report->predicted_s, back->first_token_s(), 0.05 * back->first_token_s());
  for (Clock::Monotonic from = begin; from + Seconds(1) < engine_.clock.Now();
       from += Seconds(0.05)) {
    EXPECT_GE(TokensWithin(from, from + Seconds(1)), 0.78 * alone);
  }
}

TEST_F(SharedEngine, ALonePromptSharesTheChunkAsEver) {
  StartStreams();
  engine_.Create("new", RandomTokens(9, kRestoredBlocks * kBlock));
  const auto fresh = engine_.Start("new", {}, 1);
  engine_.RunUntil([&] { return fresh->end.has_value(); });
  EXPECT_NEAR(fresh->first_token_s(), 10 * (0.002 + 0.068), 0.01);  // ten passes of 64 + 4 rows
}

TEST_F(SharedEngine, WithoutStreamsARestoreHasAllTheTime) {
  engine_.Prepare("back", 9, kRestoredBlocks, Tier::kAbsent);
  const auto back = engine_.Start("back", {}, 1);
  engine_.RunUntil([&] { return back->end.has_value(); });
  EXPECT_NEAR(back->first_token_s(), 10 * 0.066 + 0.006, 0.005);
}

// What a plan computes again beside streams takes five times as long, so it loads more.
TEST_F(SharedEngine, PlansLoadMoreWhileStreamsRun) {
  engine_.disk().read_time = [](const BlockIdentity&) { return std::chrono::milliseconds(16); };
  engine_.Prepare("warm", 8, kRestoredBlocks);  // so that the disk's time is known
  const auto warm = engine_.Start("warm", {}, 1);
  engine_.RunUntil([&] { return warm->end.has_value(); });
  engine_.Prepare("back", 9, kRestoredBlocks);
  const auto reloaded = [&] {
    const Result<RestoreReport> plan = engine_.core().ExplainRestore({.id = "back"});
    return plan.ok() ? std::ranges::count(plan->blocks, BlockFate::kReloaded, &BlockReport::fate)
                     : -1;
  };
  const int64_t alone = reloaded();
  EXPECT_NEAR(static_cast<double>(alone), kRestoredBlocks / 2.0, 4);
  StartStreams();
  EXPECT_NEAR(static_cast<double>(reloaded()), kRestoredBlocks * 5.0 / 6, 2);
}

}  // namespace
}  // namespace cairn
