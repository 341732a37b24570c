#include "tests/wave_rounds.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>

#include "tests/fakes/random_restores.h"

namespace cairn {
namespace {

constexpr uint32_t kBlockTokens = 16;

// The bytes of the blocks of `tokens` that are there.
std::vector<std::vector<std::byte>> BytesThere(EngineHarness& harness,
                                               const std::vector<uint32_t>& tokens) {
  std::vector<std::vector<std::byte>> bytes(tokens.size() / kBlockTokens);
  const std::vector<Hold> holds = harness.blocks().Match(harness.root(), tokens, 50, {});
  for (size_t i = 0; i < holds.size(); ++i) {
    if (holds[i] && holds[i].is_ready()) bytes[i] = harness.BytesOf(holds[i]);
  }
  return bytes;
}

// Another stream comes so far, and its tokens are taken back.
void CancelAStream(Rng& rng, EngineHarness& harness, int64_t token_count) {
  const SequenceId id = harness.NextId();
  (void)harness.StartDecode({.id = "s", .max_tokens = 4, .sampling = Greedy()}, id);
  for (uint64_t steps = rng.Below(4); steps > 0; --steps) harness.core().Step();
  harness.core().CancelStream(id, Status(Code::kCancelled, "by the test"));
  harness.Run();
  ASSERT_TRUE(harness.core().TruncateSession("s", token_count).ok());
}

// The session leaves the device, and some of its blocks are dropped.
void Leave(Rng& rng, EngineHarness& harness, const std::vector<uint32_t>& tokens) {
  ASSERT_TRUE(Suspend(harness.core(), "s", Tier::kHost).ok());
  for (uint32_t block = 0; block < tokens.size() / kBlockTokens; ++block) {
    if (!rng.Chance(0.15)) continue;
    const auto upto = std::span(tokens).first((size_t{block} + 1) * kBlockTokens);
    harness.blocks().DropUnheld(harness.root(), upto, block);
  }
}

}  // namespace

void WaveRounds::Play(Rng& rng, HarnessOptions options, const BackendMaker& waves_backend) {
  options.prefill_chunk = 256;
  EngineHarness lone(options);
  // Some waves take several passes.
  if (rng.Chance(0.5)) options.prefill_chunk = static_cast<uint32_t>(16 + rng.Below(100));
  options.host_blocks = 100;
  options.make_backend = waves_backend;
  options.make_restores = [seed = rng.Next()](const BlockStore&) {
    return std::make_unique<RandomRestores>(seed, 0.9);
  };
  EngineHarness waves(options);
  for (EngineHarness* one : {&waves, &lone}) one->Create("s", {});
  for (int turn = 0; turn < shape_.turns && !testing::Test::HasFailure(); ++turn) {
    PlayTurn(rng, waves, lone);
  }
  const RestoreCounts counts = waves.core().GetStats()->restores;
  waiting_passes_ += counts.waiting_passes;
  failed_blocks_ += counts.blocks[static_cast<size_t>(BlockFate::kReloadFailed)];
}

void WaveRounds::PlayTurn(Rng& rng, EngineHarness& waves, EngineHarness& lone) {
  const DecodeRequest request = {.id = "s",
                                 .content = RandomTokens(rng.Next(), 1 + rng.Below(shape_.prompt)),
                                 .max_tokens = static_cast<uint32_t>(1 + rng.Below(shape_.decode)),
                                 .sampling = Greedy()};
  if (rng.Chance(0.3)) CancelAStream(rng, waves, static_cast<int64_t>(lone.Tokens("s").size()));
  const auto answer = waves.StartDecode(request), expected = lone.Decode(request);
  while (!answer->end) waves.core().Step();  // copies take their time
  ASSERT_TRUE(answer->end->status.ok()) << answer->end->status.ToString();
  ASSERT_EQ(answer->tokens, expected->tokens);
  const std::vector<uint32_t> tokens = lone.Tokens("s");
  CompareBlocks(waves, lone, tokens);
  Leave(rng, waves, tokens);
}

void WaveRounds::CompareBlocks(EngineHarness& waves, EngineHarness& lone,
                               const std::vector<uint32_t>& tokens) {
  const auto there = BytesThere(waves, tokens), all = BytesThere(lone, tokens);
  for (size_t i = 0; i < there.size(); ++i) {
    if (there[i].empty() || all[i].empty()) continue;
    ASSERT_EQ(there[i], all[i]) << "block " << i;
    ++compared_blocks_;
  }
}

}  // namespace cairn
