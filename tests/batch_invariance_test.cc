// One answer: whatever shares the batch, whatever the chunks, the order of arrival, the number of
// threads, forks, truncations, preemptions and cancels, every session's tokens and every block's
// bytes equal those of a lone run. Many mixes on tiny models; batch_invariance_model_test.cc has
// the real one.
#include <gtest/gtest.h>

#include "tests/batch_mix.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

class BatchInvariance : public testing::TestWithParam<ComputeMode> {};

TEST_P(BatchInvariance, RandomMixesEqualLoneRuns) {
  constexpr int kMixes = kSanitized ? 30 : 100;
  Rng rng(GetParam() == ComputeMode::kExact ? 2026 : 2027);
  MixShape shape;
  MixComparison comparison;
  for (int mix = 0; mix < kMixes; ++mix) {
    SCOPED_TRACE("mix " + std::to_string(mix));
    const MixScript script = RandomScript(rng, shape);
    HarnessOptions options;
    options.mode = GetParam();
    options.model.type = mix % 3 == 0   ? TensorType::kQ4_1
                         : mix % 3 == 1 ? TensorType::kQ4_0
                                        : TensorType::kQ8_0;
    HarnessOptions lone_options = options;
    lone_options.threads = 1;
    lone_options.prefill_chunk = 512;
    options.threads = 1u << rng.Below(3);
    options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(80));
    options.concurrent_max = static_cast<uint32_t>(2 + rng.Below(8));
    options.device_blocks = LargestContextBlocks(script) + static_cast<uint32_t>(rng.Below(12));
    MixEngine busy{.harness = std::make_unique<EngineHarness>(options)};
    MixEngine lone{.harness = std::make_unique<EngineHarness>(lone_options)};
    comparison.Run(script, busy, lone, rng.Next());
    if (HasFailure()) return;
  }
  EXPECT_GT(comparison.compared_blocks(), 10u * kMixes);
  EXPECT_GT(comparison.preemptions(), kMixes / 5);
}

INSTANTIATE_TEST_SUITE_P(Modes, BatchInvariance,
                         testing::Values(ComputeMode::kExact, ComputeMode::kFast),
                         [](const auto& test) { return std::string(ComputeModeName(test.param)); });

}  // namespace
}  // namespace cairn
