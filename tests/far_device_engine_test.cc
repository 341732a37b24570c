// The engine on a device whose memory the host cannot touch: nothing but streams and operations
// reaches it, and every answer has the bits of the CPU backend.
#include <gtest/gtest.h>

#include "tests/batch_mix.h"
#include "tests/fakes/far_backend.h"

namespace cairn {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMixes = 6;
#else
constexpr int kMixes = 30;
#endif

BackendMaker Far(uint32_t thread_count) {
  return [thread_count] { return MakeFarBackend({.thread_count = thread_count}); };
}

TEST(FarDevice, EndsAHostThatTouchesItsMemory) {
  const Result<Backend> far = MakeFarBackend({.thread_count = 1});
  ASSERT_TRUE(far.ok());
  const std::unique_ptr<Buffer> buffer = *far->device->Allocate(64);
  EXPECT_DEATH({ *reinterpret_cast<volatile int*>(buffer->data()) = 1; }, "");
  EXPECT_DEATH({ (void)*reinterpret_cast<volatile int*>(buffer->data()); }, "");
}

TEST(FarDevice, RefusesOperandsInTheHostsMemory) {
  const Result<Backend> far = MakeFarBackend({.thread_count = 1});
  ASSERT_TRUE(far.ok());
  const std::unique_ptr<Stream> stream = *far->device->NewStream(StreamUse::kCompute);
  std::vector<float> row(8);
  EXPECT_DEATH(far->ops->SwiGlu({row.data(), row.data(), row.data(), 1, 8}, *stream), "CHECK");
}

// Through the host pool too, from which blocks must be copied back before they are used.
TEST(FarDevice, RandomMixesEqualLoneRunsOnTheCpu) {
  Rng rng(2028);
  MixShape shape;
  shape.text = [](Rng& draw, size_t count) { return RandomTokens(draw.Next(), count); };
  shape.suspended_to = {Tier::kHost, Tier::kAbsent};
  MixComparison comparison;
  uint64_t promotions = 0;
  for (int mix = 0; mix < kMixes; ++mix) {
    SCOPED_TRACE("mix " + std::to_string(mix));
    const MixScript script = RandomScript(rng, shape);
    HarnessOptions options;
    HarnessOptions lone_options = options;
    lone_options.threads = 1;
    lone_options.prefill_chunk = 512;
    options.make_backend = Far(1u << rng.Below(2));
    options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(80));
    options.concurrent_max = static_cast<uint32_t>(2 + rng.Below(8));
    options.device_blocks = LargestContextBlocks(script) + static_cast<uint32_t>(rng.Below(12));
    options.host_blocks = static_cast<uint32_t>(rng.Below(20));
    MixEngine busy{.harness = std::make_unique<EngineHarness>(options)};
    MixEngine lone{.harness = std::make_unique<EngineHarness>(lone_options)};
    comparison.Run(script, busy, lone, rng.Next());
    if (HasFailure()) return;
    promotions += busy.harness->blocks().stats().promotions;
  }
  EXPECT_GT(comparison.compared_blocks(), 10u * kMixes);
  EXPECT_GT(promotions, 0u);
}

}  // namespace
}  // namespace cairn
