// What the engine tells of restores, on a whole engine over a small model and a disk in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "tests/engine_harness.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_spill_store.h"

namespace cairn {
namespace {

constexpr uint32_t kBlock = 16;
constexpr size_t kBlocks = 10;

// Whatever the test says, for each block that has a choice.
class SaidStrategy final : public RestoreStrategy {
 public:
  explicit SaidStrategy(std::function<Verdict(uint32_t block)> say) : say_(std::move(say)) {}
  RestorePlan Plan(const RestoreView& view) override {
    RestorePlan plan{.execution = Execution::kFront, .predicted_s = 0.5};
    plan.load_order.resize(kRestoreChannels);
    for (uint32_t i = 0; i < view.blocks.size(); ++i) {
      const bool loads = view.blocks[i] == Origin::kDisk && say_(i) == Verdict::kReload;
      plan.verdicts.push_back(view.blocks[i] == Origin::kResident ? Verdict::kKeep
                              : loads                             ? Verdict::kReload
                                                                  : Verdict::kRecompute);
      if (loads) plan.load_order[kDiskChannel].push_back(i);
    }
    return plan;
  }

 private:
  std::function<Verdict(uint32_t)> say_;
};

class RestoreExplain : public testing::Test {
 protected:
  RestoreExplain()
      : harness_({.threads = 1,
                  .device_blocks = 64,
                  .open_spill =
                      [this](const Digest&, const KvLayout& layout, auto) {
                        auto store = std::make_unique<FakeSpillStore>(
                            disk_, FakeSpillOptions{.answer_chance = 1}, layout.block_bytes());
                        spill_ = store.get();
                        return Result<std::unique_ptr<SpillStore>>(std::move(store));
                      },
                  .make_restores =
                      [this](const BlockStore&) {
                        return std::make_unique<SaidStrategy>(
                            [this](uint32_t block) { return verdict_(block); });
                      },
                  .clock = &clock_}) {
    harness_.Create("a", RandomTokens(1, kBlocks * kBlock + 3));
    Say();
    EXPECT_TRUE(Suspend(core(), "a", Tier::kDisk).ok());
  }

  EngineCore& core() { return harness_.core(); }
  Result<RestoreReport> Explain(bool last) {
    return core().ExplainRestore({.id = "a", .last = last});
  }
  RestoreCounts Counts() { return core().GetStats()->restores; }

  void Say() {
    DecodeRequest request{.id = "a", .max_tokens = 1, .sampling = Greedy()};
    auto sink = harness_.StartDecode(request);
    while (!sink->end) {
      core().Step();
      clock_.Advance(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(sink->end->status.ok());
    harness_.Run();
  }
  static int64_t CountOf(const RestoreReport& report, BlockFate fate) {
    return std::ranges::count(report.blocks, fate, &BlockReport::fate);
  }

  FakeClock clock_;
  FakeDisk disk_;
  FakeSpillStore* spill_ = nullptr;
  std::function<Verdict(uint32_t)> verdict_ = [](uint32_t) { return Verdict::kReload; };
  EngineHarness harness_;
};

TEST_F(RestoreExplain, APlanIsMadeAndNothingMoves) {
  verdict_ = [](uint32_t block) { return block < 4 ? Verdict::kRecompute : Verdict::kReload; };
  const Result<RestoreReport> plan = Explain(false);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->execution, Execution::kFront);
  EXPECT_EQ(plan->block_tokens, kBlock);
  EXPECT_EQ(plan->token_count, kBlocks * kBlock + 4);
  EXPECT_EQ(plan->computed_count, kBlocks * kBlock + 3);  // the last token was sampled only
  EXPECT_EQ(plan->predicted_s, 0.5);
  EXPECT_FALSE(plan->actual_time);
  ASSERT_EQ(plan->blocks.size(), kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(plan->blocks[i].tier, Tier::kDisk);
    EXPECT_EQ(plan->blocks[i].fate, i < 4 ? BlockFate::kRecomputed : BlockFate::kReloaded);
  }
  EXPECT_EQ(core().GetSession("a")->residency.disk_tokens, kBlocks * kBlock);
  EXPECT_EQ(Counts().blocks[static_cast<size_t>(BlockFate::kReloaded)], 0);
  EXPECT_EQ(Explain(true).status().code(), Code::kFailedPrecondition);
}

TEST_F(RestoreExplain, TheLastOneTellsWhatBecameOfEachBlock) {
  verdict_ = [](uint32_t block) { return block < 4 ? Verdict::kRecompute : Verdict::kReload; };
  Say();
  const Result<RestoreReport> last = Explain(true);
  ASSERT_TRUE(last.ok());
  EXPECT_GT(last->actual_time->count(), 0);
  ASSERT_EQ(last->blocks.size(), kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(last->blocks[i].tier, Tier::kDisk);
    EXPECT_EQ(last->blocks[i].fate, i < 4 ? BlockFate::kRecomputed : BlockFate::kReloaded);
  }
  const RestoreCounts counts = Counts();
  EXPECT_EQ(counts.by_execution[static_cast<size_t>(Execution::kFront)].restores, 1);
  EXPECT_EQ(counts.blocks, (std::array<int64_t, 4>{0, 6, 4, 0}));
  // Now everything is there; what is asked for then is no restore, and the last one stays.
  EXPECT_EQ(Explain(false)->execution, Execution::kNone);
  Say();
  EXPECT_EQ(Explain(true)->decided_at, last->decided_at);
  EXPECT_EQ(Counts().by_execution[static_cast<size_t>(Execution::kFront)].restores, 1);
}

TEST_F(RestoreExplain, NewTokensAreToldFromLostOnes) {
  const Content more = RandomTokens(2, 2 * kBlock);
  ASSERT_TRUE(
      core().AppendContent({.id = "a", .content = more}, *core().encoder().Encode(more)).ok());
  const Residency residency = core().GetSession("a")->residency;
  EXPECT_EQ(residency.disk_tokens, kBlocks * kBlock);
  EXPECT_EQ(residency.absent_tokens, 2 * kBlock);
  EXPECT_EQ(residency.tail_tokens, 4);
  const Result<RestoreReport> plan = Explain(false);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->blocks.size(), kBlocks + 2);
  EXPECT_EQ(plan->token_count, (kBlocks + 2) * kBlock + 4);
  EXPECT_EQ(plan->computed_count, kBlocks * kBlock + 3);
  Say();
  EXPECT_EQ(Explain(true)->computed_count, plan->computed_count);
}

TEST_F(RestoreExplain, WhatIsNewIsNotCountedAsRecomputed) {
  const Content more = RandomTokens(2, 2 * kBlock);
  ASSERT_TRUE(
      core().AppendContent({.id = "a", .content = more}, *core().encoder().Encode(more)).ok());
  verdict_ = [](uint32_t) { return Verdict::kRecompute; };
  Say();
  EXPECT_EQ(CountOf(*Explain(true), BlockFate::kRecomputed), static_cast<int64_t>(kBlocks + 2));
  EXPECT_EQ(Counts().blocks, (std::array<int64_t, 4>{0, 0, kBlocks, 0}));
  // All passes count, also one that goes on with new rows.
  EXPECT_EQ(core().GetStats()->blocks_recomputed, static_cast<int64_t>(kBlocks));
}

TEST_F(RestoreExplain, ALoadThatFailedIsToldApart) {
  spill_->options.fails_every = 5;
  Say();
  const Result<RestoreReport> last = Explain(true);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(spill_->failed_count(), 2u);
  EXPECT_EQ(CountOf(*last, BlockFate::kReloadFailed), 2);
  EXPECT_EQ(CountOf(*last, BlockFate::kReloaded), 8);
}

TEST_F(RestoreExplain, APrefetchIsARestoreToo) {
  ASSERT_TRUE(core().PrefetchSession("a", harness_.NextId()).ok());
  while (core().HasWork()) core().Step();
  const Result<RestoreReport> last = Explain(true);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(CountOf(*last, BlockFate::kReloaded), static_cast<int64_t>(kBlocks));
}

TEST_F(RestoreExplain, OneThatIsCancelledWasNotCarriedOut) {
  spill_->options.answer_chance = 0;
  const SequenceId id = harness_.NextId();
  auto sink = harness_.StartDecode({.id = "a", .max_tokens = 1, .sampling = Greedy()}, id);
  for (int i = 0; i < 3; ++i) core().Step();
  core().CancelStream(id, Status(Code::kCancelled, "by the test"));
  EXPECT_TRUE(sink->end);
  EXPECT_EQ(Explain(true).status().code(), Code::kFailedPrecondition);
  spill_->options.answer_chance = 1;
  harness_.Run();
  EXPECT_EQ(harness_.blocks().stats().held_hot, 0u);
}

TEST_F(RestoreExplain, ASessionThatIsMadeAgainHasNoPast) {
  Say();
  ASSERT_TRUE(Explain(true).ok());
  ASSERT_TRUE(core().DeleteSession("a").ok());
  EXPECT_EQ(Explain(true).status().code(), Code::kNotFound);
  EXPECT_EQ(Explain(false).status().code(), Code::kNotFound);
  harness_.Create("a", {});
  EXPECT_EQ(Explain(true).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Explain(false)->execution, Execution::kNone);
}

}  // namespace
}  // namespace cairn
