// Batch invariance on the real model, with prompts of real text (the license): few mixes, but the
// sizes, the types and the attention of the model that is served.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/batch_mix.h"

namespace cairn {
namespace {

std::vector<uint32_t> TokensOfFile(EngineHarness& harness, const std::string& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return harness.Encode(text).next;
}

class ModelBatchInvariance : public testing::TestWithParam<ComputeMode> {};

TEST_P(ModelBatchInvariance, RandomMixesEqualLoneRuns) {
  HarnessOptions options;
  options.model_path = CAIRN_MODEL_FILE;
  options.mode = GetParam();
  HarnessOptions lone_options = options;
  lone_options.threads = 1;
  lone_options.prefill_chunk = 512;
  Rng rng(137);
  MixComparison comparison;
  for (int mix = 0; mix < 6; ++mix) {
    SCOPED_TRACE("mix " + std::to_string(mix));
    MixEngine lone{.harness = std::make_unique<EngineHarness>(lone_options)};
    const std::vector<uint32_t> prose = TokensOfFile(*lone.harness, CAIRN_PROSE_FILE);
    ASSERT_GT(prose.size(), 1000u);
    MixShape shape;  // more sessions and fewer turns than usual: a pool for one is short for all
    shape.sessions = 6;
    shape.turns = 2;
    shape.prompt = 150;
    shape.text = [&](Rng& draw, size_t count) {
      const auto begin = prose.begin() + static_cast<long>(draw.Below(prose.size() - count));
      return std::vector<uint32_t>(begin, begin + static_cast<long>(count));
    };
    const MixScript script = RandomScript(rng, shape);
    options.threads = 1u << (mix % 3);
    options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(100));
    options.concurrent_max = static_cast<uint32_t>(5 + rng.Below(4));
    options.device_blocks = LargestContextBlocks(script);
    MixEngine busy{.harness = std::make_unique<EngineHarness>(options)};
    comparison.Run(script, busy, lone, rng.Next());
    if (HasFailure()) return;
  }
  EXPECT_GT(comparison.compared_blocks(), 100u);
  EXPECT_GT(comparison.preemptions(), 2);
}

INSTANTIATE_TEST_SUITE_P(Modes, ModelBatchInvariance,
                         testing::Values(ComputeMode::kExact, ComputeMode::kFast),
                         [](const auto& test) { return std::string(ComputeModeName(test.param)); });

}  // namespace
}  // namespace cairn
