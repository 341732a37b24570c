// The equivalence law: whatever the tiers, the sizes of their pools, suspensions, restarts, faults
// of the disk, plans of restores, the mix of streams and the number of threads, the tokens and
// block bytes of every session equal those of an uninterrupted lone run with everything on the
// device. One history, one seed: --gtest_filter names it.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/batch_mix.h"
#include "tests/fakes/tiered_world.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

constexpr int kShards = kSanitized ? 2 : 10;
constexpr int kHistoriesPerShard = 50;

class Equivalence : public testing::TestWithParam<int> {};

TEST_P(Equivalence, RandomHistoriesEqualLoneRuns) {
  MixShape shape;
  shape.turns = 4;
  shape.change_share = 0.4;
  shape.suspended_to = {Tier::kAbsent, Tier::kHost, Tier::kHost, Tier::kDisk, Tier::kDisk};
  MixComparison comparison;
  for (int i = 0; i < kHistoriesPerShard; ++i) {
    const int history = GetParam() * kHistoriesPerShard + i;
    SCOPED_TRACE("history " + std::to_string(history));
    Rng rng(static_cast<uint64_t>(history) + 1);
    const MixScript script = RandomScript(rng, shape);
    HarnessOptions lone_options;
    lone_options.model.type = history % 2 == 0 ? TensorType::kQ4_1 : TensorType::kQ8_0;
    TieredWorld world(rng, script, lone_options);
    MixEngine busy = world.Open();
    lone_options.threads = 1;
    lone_options.prefill_chunk = 512;
    MixEngine lone{.harness = std::make_unique<EngineHarness>(lone_options)};
    comparison.Run(script, busy, lone, rng.Next());
    if (HasFailure()) return;
  }
  EXPECT_GT(comparison.compared_blocks(), 10u * kHistoriesPerShard);
  EXPECT_GT(comparison.reloads(), 2 * kHistoriesPerShard);
  EXPECT_GT(comparison.restarts(), kHistoriesPerShard / 2);
}

INSTANTIATE_TEST_SUITE_P(Shards, Equivalence, testing::Range(0, kShards));

}  // namespace
}  // namespace cairn
