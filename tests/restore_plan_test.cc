#include "offload/restore_plan.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(RestorePlanTest, NamesAreReadBack) {
  for (const char* name :
       {"cairn", "load_all", "recompute_all", "greedy", "threshold", "cake", "cut", "wave"}) {
    ASSERT_TRUE(ParseRestorePolicy(name).has_value()) << name;
    EXPECT_EQ(NameOf(*ParseRestorePolicy(name)), name);
  }
  for (const char* name : {"none", "load_all", "recompute_all", "front", "wave"}) {
    ASSERT_TRUE(ParseExecution(name).has_value()) << name;
    EXPECT_EQ(NameOf(*ParseExecution(name)), name);
  }
  EXPECT_EQ(ParseRestorePolicy("cake"), RestorePolicy::kCake);
  EXPECT_EQ(ParseExecution("wave"), Execution::kWave);
  EXPECT_EQ(NameOf(Verdict::kRecompute), "recompute");
  EXPECT_EQ(NameOf(NoWave::kShared), "shared");
  EXPECT_EQ(NameOf(NoWave::kNothingToLoad), "nothing_to_load");
  EXPECT_FALSE(ParseRestorePolicy("Cairn").has_value());
  EXPECT_FALSE(ParseRestorePolicy("").has_value());
  EXPECT_FALSE(ParseExecution("cake").has_value());
}

TEST(RestorePlanTest, RecomputingALaterBlockCostsMore) {
  const RestorePrices prices = {{0.25}, 2.0, 0.5};
  EXPECT_EQ(prices.RecomputeSeconds(0), 2.0);
  EXPECT_EQ(prices.RecomputeSeconds(6), 5.0);
}

}  // namespace
}  // namespace cairn
