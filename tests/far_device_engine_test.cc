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
  shape.text = [](Rng& draw, size_t count) { return RandomTokens(draw.Next(), count); };
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

// The bytes of the blocks of `tokens` that are there.
std::vector<std::vector<std::byte>> BytesThere(EngineHarness& harness,
                                               const std::vector<uint32_t>& tokens) {
  std::vector<std::vector<std::byte>> bytes(tokens.size() / 16);
  const std::vector<Hold> holds = harness.blocks().Match(harness.root(), tokens, 50, {});
  for (size_t i = 0; i < holds.size(); ++i) {
    if (holds[i] && holds[i].is_ready()) bytes[i] = harness.BytesOf(holds[i]);
  }
  return bytes;
}

// A session comes back from the host's pool again and again, with holes, while its blocks arrive
// layer by layer, late, and some not at all; now and then its stream is cancelled.
TEST(FarDevice, RandomWavesEqualLoneRunsOnTheCpu) {
  Rng rng(7);
  int64_t waiting_passes = 0, failed = 0;
  size_t compared = 0;
  for (int round = 0; round < kMixes; ++round) {
    SCOPED_TRACE(round);
    HarnessOptions options;
    options.model.layers = static_cast<uint32_t>(1 + rng.Below(10));
    options.prefill_chunk = 256;
    EngineHarness lone(options);
    // Some waves take several passes.
    if (rng.Chance(0.5)) options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(100));
    options.host_blocks = 100;
    FarCopies copies = {.are_late = rng.Chance(0.7), .seed = rng.Next()};
    if (rng.Chance(0.6)) copies.failure_chance = 0.03 * rng.Uniform();
    options.make_backend = Far(1u << rng.Below(2), copies);
    options.make_restores = [seed = rng.Next()](const BlockStore&) {
      return std::make_unique<RandomRestores>(seed, 0.9);
    };
    EngineHarness waves(options);
    for (EngineHarness* one : {&waves, &lone}) one->Create("s", {});
    for (int turn = 0; turn < 5; ++turn) {
      const DecodeRequest request = {.id = "s",
                                     .content = RandomTokens(rng.Next(), 1 + rng.Below(120)),
                                     .max_tokens = static_cast<uint32_t>(1 + rng.Below(8)),
                                     .sampling = Greedy()};
      if (rng.Chance(0.3)) {  // another stream has come so far
        const SequenceId id = waves.NextId();
        (void)waves.StartDecode({.id = "s", .max_tokens = 4, .sampling = Greedy()}, id);
        for (uint64_t steps = rng.Below(4); steps > 0; --steps) waves.core().Step();
        waves.core().CancelStream(id, Status(Code::kCancelled, "by the test"));
        waves.Run();
        const auto position = static_cast<int64_t>(lone.Tokens("s").size());
        ASSERT_TRUE(waves.core().TruncateSession("s", position).ok());
      }
      const auto answer = waves.StartDecode(request), expected = lone.Decode(request);
      for (int steps = 0; !answer->end && steps < 10000; ++steps) waves.core().Step();
      ASSERT_TRUE(answer->end && answer->end->status.ok());
      ASSERT_EQ(answer->tokens, expected->tokens);
      const std::vector<uint32_t> tokens = lone.Tokens("s");
      const auto there = BytesThere(waves, tokens), all = BytesThere(lone, tokens);
      for (size_t i = 0; i < there.size(); ++i) {
        if (there[i].empty() || all[i].empty()) continue;
        ASSERT_EQ(there[i], all[i]) << "block " << i;
        ++compared;
      }
      ASSERT_TRUE(Suspend(waves.core(), "s", Tier::kHost).ok());
      for (uint32_t block = 0; block < tokens.size() / 16; ++block) {
        if (!rng.Chance(0.15)) continue;
        const auto upto = std::span(tokens).first((size_t{block} + 1) * 16);
        waves.blocks().DropUnheld(waves.root(), upto, block);
      }
    }
    const RestoreCounts counts = waves.core().GetStats()->restores;
    waiting_passes += counts.waiting_passes;
    failed += counts.blocks[static_cast<size_t>(BlockFate::kReloadFailed)];
  }
  EXPECT_GT(waiting_passes, kMixes);
  EXPECT_GT(failed, 0);
  EXPECT_GT(compared, 10u * kMixes);
}

}  // namespace
}  // namespace cairn
