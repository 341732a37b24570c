// The engine on the CUDA backend, on a device or an emulated one: a tiny model decodes, through the
// tiers that blocks move between, and the equivalence law holds: what is interrupted, evicted,
// copied to the host and back, or shares its batch, answers as a lone run does.
#include <gtest/gtest.h>

#include "tests/batch_mix.h"
#include "tests/cuda_decoders.h"
#include "tests/cuda_machine.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

constexpr int kMixes = kSanitized ? 1 : 3;

HarnessOptions OnCuda() {
  HarnessOptions options;
  options.model.layers = 2;
  options.device_blocks = 64;
  options.prefill_chunk = 32;
  options.concurrent_max = 4;
  options.make_backend = [] { return MakeCudaTestBackend(ComputeMode::kExact); };
  return options;
}

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override { StartMachine(CudaMachines().back()); }
  void TearDown() override { ExpectNothingFound(); }
};

TEST_F(CudaEngine, DecodesATinyModelAsTheCpuDoes) {
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

TEST_F(CudaEngine, RandomMixesEqualLoneRuns) {
  Rng rng(2029);
  const MixShape shape = {.sessions = 2,
                          .turns = 2,
                          .shared = 20,
                          .prompt = 30,
                          .decode = 6,
                          .suspended_to = {Tier::kHost, Tier::kAbsent}};
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

// Contexts grow beyond a span of attention, come and go.
TEST_F(CudaEngine, RepeatedStepsAreThoseDoneOneByOne) {
  CudaDecoders decoders;
  decoders.Join(0, 5);
  decoders.Join(1, 254);
  const std::vector<std::vector<uint32_t>> turns = {{0}, {0, 1}, {0, 2, 1}, {3, 0, 1, 2}, {2}};
  for (const std::vector<uint32_t>& contexts : turns) {
    if (contexts.size() > 2) decoders.Join(contexts.size() == 3 ? 2 : 3, 20);
    for (int i = 0; i < 3; ++i) decoders.Step(contexts);
  }
  decoders.ExpectEqualBlocks();
}

}  // namespace
}  // namespace cairn
