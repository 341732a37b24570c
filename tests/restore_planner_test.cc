// The planner on problems that can be worked out by hand; restore_regret_test.cc has the random
// ones.
#include "offload/restore_planner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string_view>
#include <vector>

#include "tests/restore_problems.h"

namespace {
size_t allocation_count = 0;
}  // namespace

// Counted, to show that planning again allocates nothing. Not inlined: the compiler would see a
// `new` that is freed by free().
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocation_count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocation_count;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace cairn {
namespace {

// '.' on the device, '-' absent, 'a' and so on: channels.
std::vector<BlockSource> Blocks(std::string_view letters) {
  std::vector<BlockSource> blocks;
  for (const char letter : letters) {
    blocks.push_back(letter == '.'   ? BlockSource::kDevice
                     : letter == '-' ? BlockSource::kAbsent
                                     : ThroughChannel(static_cast<uint32_t>(letter - 'a')));
  }
  return blocks;
}

// A block takes a second to compute, whatever its position; chunks of one block; no new tokens.
OwnedProblem Simple(std::string_view letters, std::vector<RestoreChannel> channels) {
  OwnedProblem made;
  made.blocks = Blocks(letters);
  made.channels = std::move(channels);
  made.problem.block_tokens = 4;
  made.problem.chunk_tokens = 4;
  made.problem.layers = 10;
  made.problem.pass.token_s = 0.25;
  made.problem.allows_wave = false;
  made.Point();
  return made;
}

// "KRC": kept, reloaded, recomputed.
std::string Verdicts(const RestorePlan& plan) {
  std::string text;
  for (const Verdict verdict : plan.verdicts) {
    text += verdict == Verdict::kKeep ? 'K' : verdict == Verdict::kReload ? 'R' : 'C';
  }
  return text;
}

using Order = std::vector<std::vector<uint32_t>>;

TEST(RestorePlannerTest, OneTierIsCutWhereBothSidesMeet) {
  const OwnedProblem made = Simple("aaaaaaaaa", {{.block_s = 2}});
  const RestorePlan plan = PlanRestore(made.problem);
  EXPECT_EQ(plan.execution, Execution::kFront);
  EXPECT_EQ(Verdicts(plan), "CCCCCCRRR");
  EXPECT_EQ(plan.load_order, (Order{{6, 7, 8}}));
  EXPECT_DOUBLE_EQ(plan.predicted_s, 6);
  EXPECT_DOUBLE_EQ(plan.load_all_s, 18);
  EXPECT_DOUBLE_EQ(plan.recompute_all_s, 9);
}

TEST(RestorePlannerTest, ASlowTierBehindAFastOneIsRecomputedThere) {
  // The fast half is loaded meanwhile: no single cut does as well.
  const OwnedProblem made = Simple("aaaabbbb", {{.block_s = 0.1}, {.block_s = 1}});
  const RestorePlan plan = PlanRestore(made.problem);
  EXPECT_EQ(Verdicts(plan), "RRRRCCRR");
  EXPECT_DOUBLE_EQ(plan.predicted_s, 0.4 + 2);
  const RestorePlan cake = PlanRestore(made.problem, RestorePolicy::kCake);
  EXPECT_EQ(Verdicts(cake), "CCCCRRRR");
  EXPECT_EQ(cake.load_order, (Order{{}, {7, 6, 5, 4}}));
  EXPECT_DOUBLE_EQ(cake.predicted_s, 4);
}

TEST(RestorePlannerTest, ACutIsWhereItIsTold) {
  OwnedProblem made = Simple("ab-a.bba", {{.block_s = 1}, {.block_s = 2}});
  const auto cut_at = [&](double share) {
    made.problem.cut_share = share;
    return PlanRestore(made.problem, RestorePolicy::kCut);
  };
  EXPECT_EQ(Verdicts(cut_at(0)), Verdicts(PlanRestore(made.problem, RestorePolicy::kLoadAll)));
  EXPECT_EQ(cut_at(0).execution, Execution::kLoadAll);
  EXPECT_EQ(Verdicts(cut_at(0.25)), "CCCRKRRR");
  EXPECT_EQ(Verdicts(cut_at(0.75)), "CCCCKCRR");
  EXPECT_EQ(cut_at(0.75).load_order, (Order{{7}, {6}}));
  EXPECT_EQ(cut_at(1).execution, Execution::kRecomputeAll);
}

TEST(RestorePlannerTest, WhatIsAbsentWaitsForWhatLiesBefore) {
  const OwnedProblem made = Simple("aaaa-", {{.block_s = 2}});
  const RestorePlan plan = PlanRestore(made.problem);
  // Three are computed while one is loaded; the last can only come then.
  EXPECT_EQ(Verdicts(plan), "CCCRC");
  EXPECT_DOUBLE_EQ(plan.predicted_s, 4);
  EXPECT_DOUBLE_EQ(plan.load_all_s, 9);
  EXPECT_DOUBLE_EQ(plan.recompute_all_s, 5);
}

TEST(RestorePlannerTest, WaveOverlapsLayerByLayer) {
  OwnedProblem made = Simple("aaaa", {{.block_s = 1}});
  made.problem.new_tokens = 4;
  made.problem.allows_wave = true;
  made.problem.allows_front = false;
  const RestorePlan plan = PlanRestore(made.problem);
  EXPECT_EQ(plan.execution, Execution::kWave);
  EXPECT_EQ(Verdicts(plan), "CRRR");  // two blocks' worth of compute beside three seconds of loads
  EXPECT_DOUBLE_EQ(plan.predicted_s, 3 + 0.2);
  EXPECT_DOUBLE_EQ(plan.load_all_s, 4 + 1);
}

TEST(RestorePlannerTest, ThePolicyWaveMakesOneWhateverItTakes) {
  OwnedProblem made = Simple("aaaabbbb", {{.block_s = 2}, {.block_s = 0.5, .comes_whole = true}});
  made.problem.allows_wave = true;
  EXPECT_EQ(PlanRestore(made.problem).execution, Execution::kFront);
  const RestorePlan wave = PlanRestore(made.problem, RestorePolicy::kWave);
  EXPECT_EQ(wave.execution, Execution::kWave);
  EXPECT_EQ(wave.no_wave, NoWave::kNone);
  // Of all Waves it is the one of least time.
  made.problem.allows_front = false;
  EXPECT_DOUBLE_EQ(wave.predicted_s, PlanRestore(made.problem).predicted_s);
  EXPECT_EQ(PlanRestore(Simple("..", {}).problem, RestorePolicy::kWave).execution,
            Execution::kNone);
}

TEST(RestorePlannerTest, ThePolicyWaveSaysWhyThereIsNone) {
  OwnedProblem made = Simple("aaaa-bbb", {{.block_s = 2}, {.block_s = 0.5}});
  made.problem.no_wave = NoWave::kStreams;
  const RestorePlan cairn = PlanRestore(made.problem);
  const RestorePlan plan = PlanRestore(made.problem, RestorePolicy::kWave);
  EXPECT_EQ(cairn.no_wave, NoWave::kNone);  // nobody asked for one
  EXPECT_EQ(plan.no_wave, NoWave::kStreams);
  EXPECT_EQ(plan.execution, cairn.execution);
  EXPECT_EQ(Verdicts(plan), Verdicts(cairn));
}

TEST(RestorePlannerTest, OnlyTheFirstPassOfWaveWaits) {
  OwnedProblem made = Simple("aaaa", {{.block_s = 1}});
  made.problem.new_tokens = 4;
  made.problem.allows_wave = true;
  made.problem.allows_front = false;
  made.problem.wave_tokens_max = 6;  // of eight, of a second and a half
  RestorePlan plan = PlanRestore(made.problem);
  EXPECT_EQ(plan.execution, Execution::kWave);
  EXPECT_EQ(Verdicts(plan), "CRRR");
  EXPECT_DOUBLE_EQ(plan.predicted_s, 3 + 0.15 + 0.5);
  made.problem.wave_tokens_max = 2;  // and the others' passes take longer than a load
  plan = PlanRestore(made.problem);
  EXPECT_EQ(Verdicts(plan), "RRRR");
  EXPECT_DOUBLE_EQ(plan.predicted_s, 4 + 0.05 + 0.5);
}

TEST(RestorePlannerTest, WaveWaitsForAllThatComesWhole) {
  OwnedProblem made = Simple("aa", {{.block_s = 1}});
  made.problem.new_tokens = 4;
  made.problem.allows_wave = true;
  made.problem.allows_front = false;
  EXPECT_EQ(PlanRestore(made.problem).execution, Execution::kWave);
  EXPECT_DOUBLE_EQ(PlanRestore(made.problem).predicted_s, 2.1);
  made.channels[0].comes_whole = true;
  EXPECT_EQ(PlanRestore(made.problem).execution, Execution::kLoadAll);
  EXPECT_DOUBLE_EQ(PlanRestore(made.problem).predicted_s, 3);
}

TEST(RestorePlannerTest, BytesThatCrossTwoChannelsCountOnBoth) {
  const OwnedProblem made = Simple("aabb", {{.block_s = 3}, {.block_s = 1, .then = 0}});
  const RestorePlan plan = PlanRestore(made.problem);
  EXPECT_DOUBLE_EQ(plan.load_all_s, 12);
  EXPECT_EQ(Verdicts(plan), "CCCR");
  EXPECT_DOUBLE_EQ(plan.predicted_s, 3);
}

TEST(RestorePlannerTest, BacklogMovesTheCut) {
  OwnedProblem made = Simple("aaaaaaaa", {{.block_s = 1, .backlog_s = 4}});
  EXPECT_EQ(Verdicts(PlanRestore(made.problem)), "CCCCCCRR");
  made.problem.compute_backlog_s = 4;
  EXPECT_EQ(Verdicts(PlanRestore(made.problem)), "CCCCRRRR");
}

TEST(RestorePlannerTest, NothingMissingIsNothingToDo) {
  OwnedProblem made = Simple("...", {{.block_s = 1}});
  made.problem.new_tokens = 2;
  const RestorePlan plan = PlanRestore(made.problem);
  EXPECT_EQ(plan.execution, Execution::kNone);
  EXPECT_EQ(Verdicts(plan), "KKK");
  EXPECT_DOUBLE_EQ(plan.predicted_s, 0.5);
  made = Simple("", {});
  EXPECT_EQ(PlanRestore(made.problem).execution, Execution::kNone);
  EXPECT_EQ(PlanRestore(made.problem).predicted_s, 0);
}

TEST(RestorePlannerTest, NothingToLoadIsRecomputed) {
  const OwnedProblem made = Simple(".--", {{.block_s = 1}});
  for (const RestorePolicy policy : {RestorePolicy::kCairn, RestorePolicy::kLoadAll}) {
    const RestorePlan plan = PlanRestore(made.problem, policy);
    EXPECT_EQ(plan.execution, Execution::kRecomputeAll);
    EXPECT_EQ(Verdicts(plan), "KCC");
    EXPECT_DOUBLE_EQ(plan.predicted_s, 2);
  }
}

TEST(RestorePlannerTest, AGainWithinTheUncertaintyIsNotTaken) {
  OwnedProblem made =
      Simple("aaaaaaaaaa", {{.block_s = 0.15}});  // 1.5 s, or 1.35 s with one computed
  EXPECT_EQ(Verdicts(PlanRestore(made.problem)), "CRRRRRRRRR");
  made.problem.uncertainty = 0.2;
  const RestorePlan plan = PlanRestore(made.problem);
  EXPECT_EQ(plan.execution, Execution::kLoadAll);
  EXPECT_DOUBLE_EQ(plan.uncertainty_s, 0.3);
}

TEST(RestorePlannerTest, RivalsDoWhatTheyAreKnownFor) {
  const OwnedProblem made = Simple("aaaabbbb", {{.block_s = 2}, {.block_s = 0.5}});
  const auto verdicts = [&](RestorePolicy policy) {
    return Verdicts(PlanRestore(made.problem, policy));
  };
  EXPECT_EQ(verdicts(RestorePolicy::kLoadAll), "RRRRRRRR");
  EXPECT_EQ(verdicts(RestorePolicy::kRecomputeAll), "CCCCCCCC");
  EXPECT_EQ(verdicts(RestorePolicy::kGreedy), "CCCCRRRR");
  EXPECT_EQ(verdicts(RestorePolicy::kThreshold), "CCCCCCCC");  // 32 tokens are too few
  const std::string many(kThresholdTokens / 4, 'a');
  OwnedProblem longer = Simple(many + "-", {{.block_s = 2}});
  EXPECT_EQ(PlanRestore(longer.problem, RestorePolicy::kThreshold).execution, Execution::kLoadAll);
  longer = Simple(many.substr(1) + "-aaaaaaaaa", {{.block_s = 2}});
  EXPECT_EQ(PlanRestore(longer.problem, RestorePolicy::kThreshold).execution,
            Execution::kRecomputeAll);
}

TEST(RestorePlannerTest, PricesExplainTheVerdicts) {
  Rng rng(5);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    const OwnedProblem made = RandomProblem(rng, 40, 3);
    const RestorePlan plan = PlanRestore(made.problem);
    for (uint32_t b = 0; b < made.blocks.size(); ++b) {
      if (!IsLoadable(made.blocks[b])) continue;
      const double reload = plan.prices.reload_s[ChannelOf(made.blocks[b])];
      const double recompute = plan.prices.RecomputeSeconds(b);
      if (plan.verdicts[b] == Verdict::kReload) {
        EXPECT_LE(reload, recompute * (1 + 1e-9));
      } else {
        EXPECT_GE(reload, recompute * (1 - 1e-9));
      }
    }
  }
}

TEST(RestorePlannerTest, NoPolicyBeatsCairn) {
  Rng rng(6);
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    const OwnedProblem made = RandomProblem(rng, 1 + static_cast<uint32_t>(rng.Below(30)), 2);
    const double best = PlanRestore(made.problem).predicted_s;
    for (const RestorePolicy policy :
         {RestorePolicy::kLoadAll, RestorePolicy::kRecomputeAll, RestorePolicy::kGreedy,
          RestorePolicy::kThreshold, RestorePolicy::kCake, RestorePolicy::kCut,
          RestorePolicy::kWave}) {
      EXPECT_GE(PlanRestore(made.problem, policy).predicted_s, best * (1 - 1e-3));
    }
  }
}

TEST(RestorePlannerTest, PlanningAgainAllocatesNothing) {
  Rng rng(7);
  const OwnedProblem made = RandomProblem(rng, 3000, 4);
  RestoreScratch scratch;
  RestorePlan plan;
  PlanRestore(made.problem, RestorePolicy::kCairn, scratch, plan);
  const size_t before = allocation_count;
  PlanRestore(made.problem, RestorePolicy::kCairn, scratch, plan);
  EXPECT_EQ(allocation_count, before);
}

TEST(RestorePlannerTest, TheShortestGoesFirst) {
  const OwnedProblem large = Simple("aaaaaaaaaaaa", {{.block_s = 1}});
  const OwnedProblem small = Simple("aa", {{.block_s = 1}});
  const std::vector<RestoreProblem> problems = {large.problem, small.problem};
  const std::vector<QueuedRestore> queue = PlanRestores(problems);
  ASSERT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue[0].problem, 1u);
  EXPECT_DOUBLE_EQ(queue[0].plan.predicted_s, 1);
  EXPECT_EQ(queue[1].problem, 0u);
  EXPECT_DOUBLE_EQ(queue[1].plan.predicted_s, 7);  // one second later than alone
}

TEST(RestorePlannerTest, WeightsDecideWhoGoesFirst) {
  OwnedProblem large = Simple("aaaaaaaaaaaa", {{.block_s = 1}});  // 6 s alone
  OwnedProblem small = Simple("aa", {{.block_s = 1}});            // 1 s
  large.problem.weight = 7;
  std::vector<RestoreProblem> problems = {small.problem, large.problem};
  std::vector<QueuedRestore> queue = PlanRestores(problems);
  EXPECT_EQ(queue[0].problem, 1u);  // 7 * 6 + 7 is less than 1 + 7 * 7
  EXPECT_DOUBLE_EQ(queue[0].plan.predicted_s, 6);
  EXPECT_DOUBLE_EQ(queue[1].plan.predicted_s, 7);
  problems[1].weight = 5;
  queue = PlanRestores(problems);
  EXPECT_EQ(queue[0].problem, 0u);  // 1 + 5 * 7 is less than 5 * 6 + 7
}

TEST(RestorePlannerTest, OneThatHardlyNeedsTheChannelGoesBeforeAShorterOne) {
  OwnedProblem loads = Simple("aaa", {{.block_s = 1}});
  OwnedProblem computes = Simple("a", {{.block_s = 1}});
  loads.problem.pass.token_s = computes.problem.pass.token_s = 2.5;
  computes.problem.new_tokens = 4;  // 10 s
  const std::vector<RestoreProblem> problems = {loads.problem, computes.problem};
  const std::vector<QueuedRestore> queue = PlanRestores(problems);
  EXPECT_EQ(queue[0].problem, 1u);
  EXPECT_DOUBLE_EQ(queue[0].plan.predicted_s, 11);
  EXPECT_DOUBLE_EQ(queue[1].plan.predicted_s, 4);  // the other way round: 3 s and 14 s
}

TEST(RestorePlannerTest, ChannelsAreSharedByThoseThatComeBackTogether) {
  // Eight equal ones: alone each would take 2 s; the sum of their waits is that of taking turns.
  const OwnedProblem one = Simple("aaaa", {{.block_s = 1}});
  const std::vector<RestoreProblem> problems(8, one.problem);
  double sum = 0;
  for (const QueuedRestore& queued : PlanRestores(problems)) sum += queued.plan.predicted_s;
  EXPECT_DOUBLE_EQ(sum, 2.0 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
}

}  // namespace
}  // namespace cairn
