// The equivalence law: whatever the tiers, the sizes of their pools, suspensions, restarts, faults
// of the disk, plans of restores, the mix of streams and the number of threads, the tokens and
// block bytes of every session equal those of an uninterrupted lone run with everything on the
// device. One history, one seed: --gtest_filter names it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "tests/batch_mix.h"
#include "tests/fakes/fake_spill_store.h"
#include "tests/fakes/random_restores.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

constexpr int kShards = kSanitized ? 2 : 10;
constexpr int kHistoriesPerShard = 50;

// A busy engine over tiers of random size and a disk with random faults.
class TieredWorld {
 public:
  TieredWorld(Rng& rng, const MixScript& script, const TinyModelOptions& model)
      : seed_(rng.Next()) {
    const uint32_t largest = LargestContextBlocks(script);
    options_.model = model;
    options_.threads = rng.Chance(0.7) ? 1 : rng.Chance(0.8) ? 2 : 4;
    options_.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(80));
    options_.concurrent_max = static_cast<uint32_t>(2 + rng.Below(8));
    if (rng.Chance(0.8)) {
      options_.make_restores = [this](const BlockStore&) {
        return std::make_unique<RandomRestores>(MixBits(++seed_));
      };
    }
    const bool has_host = rng.Chance(0.7);
    options_.host_in_place = rng.Chance(0.6);
    options_.host_blocks = has_host ? static_cast<uint32_t>(1 + rng.Below(2 * largest)) : 0;
    // In place the two pools together have room for one sequence at least.
    const uint32_t elsewhere = options_.host_in_place ? options_.host_blocks : 0;
    options_.device_blocks = std::max<uint32_t>(2, largest - std::min(largest - 1, elsewhere)) +
                             static_cast<uint32_t>(rng.Below(8));
    if (has_host && !rng.Chance(0.7)) return;  // and no disk
    spill_.quota_blocks = 12 + rng.Below(200);
    spill_.segment_blocks = 1 + rng.Below(4);
    spill_.answer_chance = 0.2 + 0.8 * rng.Uniform();
    if (rng.Chance(0.5)) {
      spill_.corruption = 0.1 * rng.Uniform();
      spill_.read_error = 0.05 * rng.Uniform();
      spill_.write_error = 0.05 * rng.Uniform();
    }
    options_.open_spill = [this](const Digest&, const KvLayout& layout, auto) {
      spill_.seed = MixBits(++seed_);
      return Result<std::unique_ptr<SpillStore>>(
          std::make_unique<FakeSpillStore>(disk_, spill_, layout.block_bytes()));
    };
  }

  MixEngine Open() {
    const auto open = [this] { return std::make_unique<EngineHarness>(options_); };
    return {.harness = open(), .reopen = open, .restart_chance = 0.2};
  }
  const HarnessOptions& options() const { return options_; }

 private:
  HarnessOptions options_;
  FakeDisk disk_;
  FakeSpillOptions spill_;
  uint64_t seed_;
};

class Equivalence : public testing::TestWithParam<int> {};

TEST_P(Equivalence, RandomHistoriesEqualLoneRuns) {
  MixShape shape;
  shape.turns = 4;
  shape.change_share = 0.4;
  shape.suspended_to = {Tier::kAbsent, Tier::kHost, Tier::kHost, Tier::kDisk, Tier::kDisk};
  shape.text = [](Rng& draw, size_t count) { return RandomTokens(draw.Next(), count); };
  MixComparison comparison;
  for (int i = 0; i < kHistoriesPerShard; ++i) {
    const int history = GetParam() * kHistoriesPerShard + i;
    SCOPED_TRACE("history " + std::to_string(history));
    Rng rng(static_cast<uint64_t>(history) + 1);
    const MixScript script = RandomScript(rng, shape);
    TinyModelOptions model;
    model.type = history % 2 == 0 ? TensorType::kQ4_1 : TensorType::kQ8_0;
    TieredWorld world(rng, script, model);
    MixEngine busy = world.Open();
    HarnessOptions lone_options;
    lone_options.model = model;
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
