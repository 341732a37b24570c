// How long planning a restore takes: 8,192 blocks in 4 tiers, in several layouts. The costs are
// those of a GPU with host memory, a disk, a slow disk and a network behind it, near where the
// choice is close.
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

}  // namespace
}  // namespace cairn

BENCHMARK_MAIN();
