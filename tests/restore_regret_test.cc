// Plan regret: how much longer the planner's plan takes than the best one there is, both by the
// simulator, over random problems. The best one is found by trying every plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "offload/restore_planner.h"
#include "offload/restore_times.h"
#include "tests/restore_problems.h"
#include "tests/restore_simulator.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

constexpr int kProblems = kSanitized ? 300 : 10000;

struct Regrets {
  std::vector<double> values;
  std::vector<int> executions = std::vector<int>(5);

  void Add(const RestorePlan& plan, double best_s) {
    values.push_back(best_s > 0 ? plan.predicted_s / best_s - 1 : 0);
    ++executions[static_cast<size_t>(plan.execution)];
  }
  void Judge(const char* name) {
    double sum = 0;
    for (const double value : values) sum += value;
    const double mean = sum / static_cast<double>(values.size());
    const double max = *std::max_element(values.begin(), values.end());
    std::printf("%s: %zu problems, plan regret mean %.6f %%, max %.4f %%;", name, values.size(),
                100 * mean, 100 * max);
    for (size_t e = 0; e < executions.size(); ++e) {
      std::printf(" %s %d", std::string(NameOf(static_cast<Execution>(e))).c_str(), executions[e]);
    }
    std::printf("\n");
    EXPECT_LE(mean, 0.01);
    EXPECT_LE(max, 0.05);
    EXPECT_GE(*std::min_element(values.begin(), values.end()), -1e-9);  // nothing beats the best
  }
};

// The planner's plan as the simulator sees it, which is to agree.
void ExpectSimulated(const RestoreProblem& problem, const RestorePlan& plan) {
  SimulatedRestore restore;
  restore.load_order = plan.load_order;
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    const bool computed = plan.verdicts[i] == Verdict::kRecompute;
    restore.recomputed.push_back(computed);
    ASSERT_EQ(plan.verdicts[i] == Verdict::kKeep, problem.blocks[i] == BlockSource::kDevice);
    ASSERT_TRUE(computed || problem.blocks[i] != BlockSource::kAbsent);
  }
  ASSERT_EQ(RestoreWith(problem, restore.recomputed).load_order, plan.load_order);
  const double seconds = plan.execution == Execution::kWave ? SimulateWave(problem, restore)
                                                            : SimulateFront(problem, restore);
  ASSERT_NEAR(plan.predicted_s, seconds, 1e-9 * seconds);
  // Never worse than the plans without a choice.
  ASSERT_LE(plan.predicted_s, plan.load_all_s);
  ASSERT_LE(plan.predicted_s, plan.recompute_all_s);
}

// The least time of this set of recomputed blocks, by the executions that are allowed.
double BestOf(const RestoreProblem& problem, const std::vector<bool>& recomputed) {
  const SimulatedRestore restore = RestoreWith(problem, recomputed);
  const double front = SimulateFront(problem, restore);
  return problem.allows_wave ? std::min(front, SimulateWave(problem, restore)) : front;
}

double BestOfAllSubsets(const RestoreProblem& problem) {
  std::vector<uint32_t> loadable;
  std::vector<bool> recomputed(problem.blocks.size());
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    if (IsLoadable(problem.blocks[i])) loadable.push_back(i);
    recomputed[i] = problem.blocks[i] == BlockSource::kAbsent;
  }
  double best = HUGE_VAL;
  for (uint32_t subset = 0; subset < 1u << loadable.size(); ++subset) {
    for (size_t n = 0; n < loadable.size(); ++n) recomputed[loadable[n]] = subset >> n & 1;
    best = std::min(best, BestOf(problem, recomputed));
  }
  return best;
}

// Every order of loads, channel by channel.
double BestOfAllOrders(const RestoreProblem& problem, SimulatedRestore& restore, size_t channel) {
  if (channel == restore.load_order.size()) return SimulateFront(problem, restore);
  std::vector<uint32_t>& order = restore.load_order[channel];
  std::sort(order.begin(), order.end());
  double best = HUGE_VAL;
  do {
    best = std::min(best, BestOfAllOrders(problem, restore, channel + 1));
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// Every vector of counts: so many of the earliest blocks of each channel.
double BestOfAllCounts(const RestoreProblem& problem) {
  std::vector<std::vector<uint32_t>> blocks(problem.channels.size());
  std::vector<bool> recomputed(problem.blocks.size());
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    if (IsLoadable(problem.blocks[i])) blocks[ChannelOf(problem.blocks[i])].push_back(i);
    recomputed[i] = problem.blocks[i] == BlockSource::kAbsent;
  }
  std::vector<size_t> counts(blocks.size());
  double best = HUGE_VAL;
  while (true) {
    best = std::min(best, BestOf(problem, recomputed));
    size_t c = 0;
    for (; c < counts.size() && counts[c] == blocks[c].size(); ++c) {
      for (const uint32_t block : blocks[c]) recomputed[block] = false;
      counts[c] = 0;
    }
    if (c == counts.size()) return best;
    recomputed[blocks[c][counts[c]++]] = true;
  }
}

TEST(RestoreRegretTest, AgainstAllSubsets) {
  Rng rng(1);
  Regrets regrets;
  for (int i = 0; i < kProblems; ++i) {
    SCOPED_TRACE(i);
    const uint32_t block_count = 1 + static_cast<uint32_t>(rng.Below(i % 50 == 0 ? 14 : 9));
    const OwnedProblem made =
        RandomProblem(rng, block_count, 1 + static_cast<uint32_t>(rng.Below(4)));
    const RestorePlan plan = PlanRestore(made.problem);
    ASSERT_NO_FATAL_FAILURE(ExpectSimulated(made.problem, plan));
    regrets.Add(plan, BestOfAllSubsets(made.problem));
  }
  regrets.Judge("all subsets");
}

void JudgeOrders(const char* name, bool starts_early) {
  Rng rng(2);
  Regrets regrets;
  for (int i = 0; i < kProblems / 10; ++i) {
    SCOPED_TRACE(i);
    OwnedProblem made = RandomProblem(rng, 1 + static_cast<uint32_t>(rng.Below(6)),
                                      1 + static_cast<uint32_t>(rng.Below(3)));
    made.problem.allows_wave = false;
    made.problem.starts_early = starts_early;
    const RestoreProblem& problem = made.problem;
    double best = HUGE_VAL;
    for (uint32_t subset = 0; subset < 1u << problem.blocks.size(); ++subset) {
      std::vector<bool> recomputed;
      for (uint32_t n = 0; n < problem.blocks.size(); ++n) {
        recomputed.push_back(problem.blocks[n] == BlockSource::kAbsent || subset >> n & 1);
      }
      SimulatedRestore restore = RestoreWith(problem, recomputed);
      best = std::min(best, BestOfAllOrders(problem, restore, 0));
    }
    const RestorePlan plan = PlanRestore(problem);
    ASSERT_NO_FATAL_FAILURE(ExpectSimulated(problem, plan));
    regrets.Add(plan, best);
  }
  regrets.Judge(name);
}

TEST(RestoreRegretTest, AgainstAllOrdersOfLoads) {
  JudgeOrders("all subsets and orders of loads", false);
}
TEST(RestoreRegretTest, AgainstAllOrdersOfLoadsStartingEarly) {
  JudgeOrders("all subsets and orders of loads, starting early", true);
}

TEST(RestoreRegretTest, AgainstAllSubsetsStartingEarly) {
  Rng rng(1);
  Regrets regrets;
  for (int i = 0; i < kProblems / 4; ++i) {
    SCOPED_TRACE(i);
    const uint32_t block_count = 1 + static_cast<uint32_t>(rng.Below(i % 50 == 0 ? 14 : 9));
    OwnedProblem made = RandomProblem(rng, block_count, 1 + static_cast<uint32_t>(rng.Below(4)));
    made.problem.starts_early = true;
    made.problem.allows_wave = i % 2 == 0;
    const RestorePlan plan = PlanRestore(made.problem);
    ASSERT_NO_FATAL_FAILURE(ExpectSimulated(made.problem, plan));
    regrets.Add(plan, BestOfAllSubsets(made.problem));
  }
  regrets.Judge("all subsets, starting early");
}

// Larger ones, on which the planner does not try every plan.
void JudgeCounts(const char* name, int problem_count, uint32_t blocks_max, uint32_t channels,
                 bool wave, bool starts_early = false) {
  Rng rng(3 + channels);
  Regrets regrets;
  while (regrets.values.size() < static_cast<size_t>(problem_count)) {
    SCOPED_TRACE(regrets.values.size());
    const uint32_t block_count =
        blocks_max / 2 + static_cast<uint32_t>(rng.Below(blocks_max / 2 + 1));
    OwnedProblem made = RandomProblem(rng, block_count, channels);
    made.problem.allows_wave = wave;
    made.problem.starts_early = starts_early;
    const RestorePlan plan = PlanRestore(made.problem);
    ASSERT_NO_FATAL_FAILURE(ExpectSimulated(made.problem, plan));
    regrets.Add(plan, BestOfAllCounts(made.problem));
  }
  regrets.Judge(name);
}

TEST(RestoreRegretTest, AgainstAllCountsOfTwoTiers) {
  JudgeCounts("all counts of 2 tiers", kProblems / 25, 140, 2, true);
}
TEST(RestoreRegretTest, AgainstAllCountsOfTwoTiersInFront) {
  JudgeCounts("all counts of 2 tiers, Front alone", kProblems / 25, 140, 2, false);
}
TEST(RestoreRegretTest, AgainstAllCountsOfTwoTiersStartingEarly) {
  JudgeCounts("all counts of 2 tiers, starting early", kProblems / 50, 80, 2, false, true);
}
TEST(RestoreRegretTest, AgainstAllCountsOfThreeTiersStartingEarly) {
  JudgeCounts("all counts of 3 tiers, starting early", kProblems / 100, 36, 3, false, true);
}
TEST(RestoreRegretTest, AgainstAllCountsOfThreeTiers) {
  JudgeCounts("all counts of 3 tiers", kProblems / 50, 60, 3, true);
}
TEST(RestoreRegretTest, AgainstAllCountsOfThreeTiersInFront) {
  JudgeCounts("all counts of 3 tiers, Front alone", kProblems / 50, 60, 3, false);
}
TEST(RestoreRegretTest, AgainstAllCountsOfFourTiers) {
  JudgeCounts("all counts of 4 tiers, Front alone", kProblems / 100, 36, 4, false);
}

// Still larger ones, by the planner's clock, which agrees with the simulator's (see above).
double BestOfAllCountsByTimes(const RestoreProblem& problem) {
  RestoreLayout layout;
  layout.Build(problem.blocks, static_cast<uint32_t>(problem.channels.size()));
  const RestoreTimes times(problem, layout);
  RecomputeCounts counts = times.RecomputeNothing();
  double best = HUGE_VAL;
  while (true) {
    if (problem.allows_wave) best = std::min(best, times.WaveSeconds(counts));
    if (times.FrontBound(counts) < best) best = std::min(best, times.FrontSeconds(counts));
    uint32_t s = 0;
    while (s < times.channel_count() && counts[s] == layout.count(s)) counts[s++] = 0;
    if (s == times.channel_count()) return best;
    ++counts[s];
  }
}

void JudgeLarge(const char* name, uint32_t blocks_max, uint32_t channels, bool wave) {
  Rng rng(20 + channels);
  Regrets regrets;
  for (int i = 0; i < kProblems / 40; ++i) {
    const auto block_count = blocks_max / 3 + static_cast<uint32_t>(rng.Below(blocks_max));
    OwnedProblem made = RandomProblem(rng, block_count, channels);
    made.problem.allows_wave = wave;
    regrets.Add(PlanRestore(made.problem), BestOfAllCountsByTimes(made.problem));
  }
  regrets.Judge(name);
}

TEST(RestoreRegretTest, AgainstAllCountsOfLargeLayouts) {
  JudgeLarge("all counts of 1 tier, large", 2000, 1, true);
  JudgeLarge("all counts of 2 tiers, large", 300, 2, true);
}

}  // namespace
}  // namespace cairn
