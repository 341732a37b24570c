// The engine on the CUDA backend, emulated: a tiny model decodes, through the tiers that blocks
// move between, and the equivalence law holds: what is interrupted, evicted, copied to the host and
// back, or shares its batch, answers as a lone run does.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/batch_mix.h"
#include "tests/cuda_emu/test_device.h"

namespace cairn {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMixes = 1;
#else
constexpr int kMixes = 3;
#endif

HarnessOptions OnCuda() {
  HarnessOptions options;
  options.model.layers = 2;
  options.device_blocks = 64;
  options.prefill_chunk = 32;
  options.concurrent_max = 4;
  options.make_backend = [] { return cuda::MakeCudaBackend(ComputeMode::kExact); };
  return options;
}

TEST(CudaEngine, DecodesATinyModelAsTheCpuDoes) {
  const cuemu::TestMachine machine;
  EngineHarness cuda(OnCuda());
  HarnessOptions on_cpu = OnCuda();
  on_cpu.make_backend = nullptr;
  EngineHarness cpu(on_cpu);
  DecodeRequest request;
  request.id = "s";
  request.content = RandomTokens(5, 40);
  request.max_tokens = 8;
  request.sampling = Greedy();
  std::vector<std::vector<uint32_t>> answers;
  for (EngineHarness* harness : {&cuda, &cpu}) {
    harness->Create("s", {});
    const auto sink = harness->Decode(request);
    ASSERT_TRUE(sink->end && sink->end->status.ok()) << sink->end->status.ToString();
    answers.push_back(sink->tokens);
  }
  EXPECT_EQ(answers[0].size(), 8u);
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(CudaEngine, RandomMixesEqualLoneRuns) {
  const cuemu::TestMachine machine({.order = cuemu::ThreadOrder::kRandom,
                                    .async_copy = cuemu::AsyncCopyTime::kEarly,
                                    .jitter_us_max = 50});
  Rng rng(2029);
  const MixShape shape = {
      .sessions = 2,
      .turns = 2,
      .shared = 20,
      .prompt = 30,
      .decode = 6,
      .suspended_to = {Tier::kHost, Tier::kAbsent},
      .text = [](Rng& draw, size_t count) { return RandomTokens(draw.Next(), count); }};
  MixComparison comparison;
  for (int mix = 0; mix < kMixes; ++mix) {
    SCOPED_TRACE("mix " + std::to_string(mix));
    const MixScript script = RandomScript(rng, shape);
    HarnessOptions options = OnCuda();
    HarnessOptions lone_options = options;
    lone_options.prefill_chunk = 128;
    options.device_blocks = LargestContextBlocks(script) + static_cast<uint32_t>(rng.Below(4));
    options.host_blocks = 4 + static_cast<uint32_t>(rng.Below(8));
    MixEngine busy{.harness = std::make_unique<EngineHarness>(options)};
    MixEngine lone{.harness = std::make_unique<EngineHarness>(lone_options)};
    comparison.Run(script, busy, lone, rng.Next());
    if (HasFailure()) return;
  }
  EXPECT_GT(comparison.compared_blocks(), 0u);
}

}  // namespace
}  // namespace cairn
