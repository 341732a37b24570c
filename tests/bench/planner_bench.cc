// How long planning a restore takes: 8,192 blocks in 4 tiers, in several layouts. The costs are
// those of a GPU with host memory, a disk, a slow disk and a network behind it, near where the
// choice is close. And how long it takes for eight at once, as a server on a CPU does it: through
// the host's pool and a disk, as Front, alone or beside running streams.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "offload/restore_planner.h"

namespace cairn {
namespace {

enum class Layout : int { kFastFirst, kSlowFirst, kStripes, kRandom, kSpilled, kHoles };
constexpr const char* kLayouts[] = {"fast_first", "slow_first", "stripes",
                                    "random",     "spilled",    "holes"};

std::vector<BlockSource> MakeBlocks(Layout layout, uint32_t count) {
  Rng rng(1);
  std::vector<BlockSource> blocks;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t quarter = 4 * i / count;
    uint32_t channel = quarter;
    if (layout == Layout::kSlowFirst) channel = 3 - quarter;
    if (layout == Layout::kStripes) channel = i / 64 % 4;
    if (layout == Layout::kRandom) channel = static_cast<uint32_t>(rng.Below(4));
    if (layout == Layout::kSpilled) {
      channel = rng.Chance(0.2) ? 1 + static_cast<uint32_t>(rng.Below(3)) : 0;
    }
    const bool is_hole = layout == Layout::kHoles && rng.Chance(0.03);
    blocks.push_back(is_hole ? BlockSource::kAbsent : ThroughChannel(channel));
  }
  return blocks;
}

void Plan(benchmark::State& state) {
  const auto layout = static_cast<Layout>(state.range(0));
  const std::vector<BlockSource> blocks = MakeBlocks(layout, static_cast<uint32_t>(state.range(1)));
  const std::vector<RestoreChannel> channels = {{.block_s = 4e-5},
                                                {.latency_s = 1e-4, .block_s = 4e-4, .then = 0},
                                                {.latency_s = 1e-4, .block_s = 2e-3, .then = 0},
                                                {.latency_s = 1e-3, .block_s = 8e-3, .then = 0}};
  RestoreProblem problem;
  problem.blocks = blocks;
  problem.channels = channels;
  problem.new_tokens = 512;
  problem.block_tokens = 16;
  problem.layers = 32;
  problem.chunk_tokens = 512;
  problem.pass = {2e-4, 4.8e-3, 3.25e-5, 1.06e-9, 0};
  RestoreScratch scratch;
  RestorePlan plan;
  for (auto _ : state) {
    PlanRestore(problem, RestorePolicy::kCairn, scratch, plan);
    benchmark::DoNotOptimize(plan.predicted_s);
  }
  state.SetLabel(std::string(kLayouts[state.range(0)]) + ": " +
                 std::string(NameOf(plan.execution)));
}
BENCHMARK(Plan)
    ->ArgsProduct({benchmark::CreateDenseRange(0, 5, 1), {512, 8192}})
    ->Unit(benchmark::kMicrosecond);

// Eight contexts of about so many blocks, no two alike.
void PlanEight(benchmark::State& state) {
  const auto block_count = static_cast<uint32_t>(state.range(0));
  const auto decode_rows = static_cast<uint32_t>(state.range(1));
  constexpr PassCosts kPass{
      .pass_s = 2e-4, .sweep_s = 4e-3, .token_s = 7e-4, .token_position_s = 1e-7};
  const std::vector<RestoreChannel> channels = {{.block_s = 5e-5},
                                                {.block_s = 9e-3, .backlog_s = 0.05}};
  std::vector<std::vector<BlockSource>> blocks;
  std::vector<RestoreProblem> problems;
  Rng rng(2);
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t count = block_count - static_cast<uint32_t>(rng.Below(block_count / 2));
    blocks.push_back(MakeBlocks(static_cast<Layout>(i % 6), count));
    for (BlockSource& block : blocks.back()) {  // three tiers of the four are on the disk
      if (IsLoadable(block)) block = ThroughChannel(ChannelOf(block) > 0 ? 1 : 0);
    }
  }
  for (const std::vector<BlockSource>& each : blocks) {
    RestoreProblem problem{.blocks = each,
                           .new_tokens = 32,
                           .block_tokens = 16,
                           .layers = 30,
                           .chunk_tokens = 256,
                           .pass = kPass,
                           .channels = channels,
                           .uncertainty = 0.03,
                           .allows_wave = false};
    if (decode_rows > 0) {
      problem.new_pass = kPass;
      problem.new_pass->decode_rows = decode_rows;
      problem.pass = CostsBesideStreams(kPass, decode_rows, 0.2);
      problem.chunk_tokens = 16;
    }
    problems.push_back(problem);
  }
  for (auto _ : state) benchmark::DoNotOptimize(PlanRestores(problems));
}
BENCHMARK(PlanEight)->ArgsProduct({{384, 8192}, {0, 4}})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
