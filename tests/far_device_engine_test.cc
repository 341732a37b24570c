// The engine on a device whose memory the host cannot touch: nothing but streams and operations
// reaches it, and every answer has the bits of the CPU backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model.h"
#include "kernels/cpu/top_logits.h"
#include "tests/batch_mix.h"
#include "tests/fakes/far_backend.h"
#include "tests/fakes/random_restores.h"
#include "tests/sanitized.h"
#include "tests/wave_rounds.h"

namespace cairn {
namespace {

constexpr int kMixes = kSanitized ? 6 : 30;

BackendMaker Far(uint32_t thread_count, const FarCopies& copies = {}) {
  return [=] { return MakeFarBackend({.thread_count = thread_count}, copies); };
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

// Through the host pool too, from which blocks must be copied back before they are used: by plans
// drawn at random, waves among them, with copies that come late or fail.
TEST(FarDevice, RandomMixesEqualLoneRunsOnTheCpu) {
  Rng rng(2028);
  MixShape shape;
  shape.turns = 4;
  shape.change_share = 0.5;
  shape.suspended_to = {Tier::kHost, Tier::kHost, Tier::kHost, Tier::kAbsent};
  MixComparison comparison;
  uint64_t promotions = 0;
  for (int mix = 0; mix < kMixes; ++mix) {
    SCOPED_TRACE("mix " + std::to_string(mix));
    const MixScript script = RandomScript(rng, shape);
    HarnessOptions options;
    HarnessOptions lone_options = options;
    lone_options.threads = 1;
    lone_options.prefill_chunk = 512;
    FarCopies copies = {.are_late = rng.Chance(0.5), .seed = rng.Next()};
    if (rng.Chance(0.5)) copies.failure_chance = 0.05 * rng.Uniform();
    options.make_backend = Far(1u << rng.Below(2), copies);
    if (rng.Chance(0.8)) {
      options.make_restores = [seed = rng.Next()](const BlockStore&) {
        return std::make_unique<RandomRestores>(seed);
      };
    }
    options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(200));
    // Beside streams there are no waves.
    options.concurrent_max = rng.Chance(0.7) ? 1 : static_cast<uint32_t>(2 + rng.Below(8));
    options.device_blocks = LargestContextBlocks(script) + static_cast<uint32_t>(rng.Below(12));
    options.host_blocks = static_cast<uint32_t>(rng.Below(100));
    MixEngine busy{.harness = std::make_unique<EngineHarness>(options)};
    MixEngine lone{.harness = std::make_unique<EngineHarness>(lone_options)};
    comparison.Run(script, busy, lone, rng.Next());
    if (HasFailure()) return;
    promotions += busy.harness->blocks().stats().promotions;
  }
  EXPECT_GT(comparison.compared_blocks(), 10u * kMixes);
  EXPECT_GT(promotions, 0u);
}

// The logits after three contexts, of which so many of the highest are enough.
class LogitsOf {
 public:
  LogitsOf(const std::string& path, Backend backend) {
    const Result<Checkpoint> checkpoint = Checkpoint::Open(path);
    model_ = *Model::Create(*checkpoint, std::move(backend),
                            {.context_length = 64, .rows_max = 32, .logits_max = 3}, nullptr);
    const size_t block_bytes = model_->kv_layout().block_bytes();
    memory_ = *model_->device().Allocate(3 * block_bytes);
    for (size_t i = 0; i < 3; ++i) blocks_.push_back(memory_->data() + i * block_bytes);
  }
  std::span<const RowLogits> Compute(const std::array<uint32_t, 3>& highest_counts) {
    const std::vector<uint32_t> tokens = RandomTokens(3, 30);
    std::vector<BatchSegment> segments;
    for (uint32_t i = 0; i < 3; ++i) {
      segments.push_back({.tokens = std::span(tokens).subspan(10 * i, 10),
                          .blocks = &blocks_[i],
                          .want_logits = true,
                          .highest_count = highest_counts[i]});
    }
    return *model_->Forward(segments);
  }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<Buffer> memory_;
  std::vector<std::byte*> blocks_;
};

TEST(FarDevice, OnlyTheLogitsThatAreWantedCross) {
  const ScratchFolder scratch;
  WriteTinyModel(scratch.File("tiny.gguf"), {});
  LogitsOf near(scratch.File("tiny.gguf"), *MakeCpuBackend({.thread_count = 1}));
  LogitsOf far(scratch.File("tiny.gguf"), *MakeFarBackend({.thread_count = 1}));
  const std::span<const RowLogits> whole = near.Compute({1, 1, 1});
  for (const auto& counts : {std::array{0u, 0u, 0u}, {1u, 1u, 1u}, {1u, 0u, 40u}, {300u, 5u, 0u}}) {
    const std::span<const RowLogits> rows = far.Compute(counts);
    ASSERT_EQ(rows.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const std::span<const float> expected = whole[i].all;
      ASSERT_FALSE(expected.empty());  // the host can read it anyway
      if (counts[i] == 0 || counts[i] > kTopLogitsMax) {
        EXPECT_TRUE(rows[i].highest.empty());
        EXPECT_TRUE(std::ranges::equal(rows[i].all, expected));
        continue;
      }
      EXPECT_TRUE(rows[i].all.empty());
      const auto count = static_cast<uint32_t>(rows[i].highest.size());
      EXPECT_GE(count, counts[i]);
      std::vector<RankedLogit> highest(count);
      SelectTopLogits(
          {expected.data(), 1, static_cast<uint32_t>(expected.size()), count, highest.data()});
      EXPECT_TRUE(std::ranges::equal(rows[i].highest, highest));
    }
  }
}

// Blocks that arrive layer by layer, late, and some not at all.
TEST(FarDevice, RandomWavesEqualLoneRunsOnTheCpu) {
  Rng rng(7);
  WaveRounds rounds;
  for (int round = 0; round < kMixes; ++round) {
    SCOPED_TRACE(round);
    HarnessOptions options;
    options.model.layers = static_cast<uint32_t>(1 + rng.Below(10));
    if (rng.Chance(0.3)) options.host_bandwidth_limit = 1'000'000'000;
    FarCopies copies = {.are_late = rng.Chance(0.7), .seed = rng.Next()};
    if (rng.Chance(0.6)) copies.failure_chance = 0.03 * rng.Uniform();
    rounds.Play(rng, options, Far(1u << rng.Below(2), copies));
    if (HasFailure()) return;
  }
  EXPECT_GT(rounds.waiting_passes(), kMixes);
  EXPECT_GT(rounds.failed_blocks(), 0);
  EXPECT_GT(rounds.compared_blocks(), 10u * kMixes);
}

}  // namespace
}  // namespace cairn
