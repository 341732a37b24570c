// Random problems for the planner: layouts with tiers and holes, costs over four decades, fixed
// charges, backlog.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "offload/restore_problem.h"

namespace cairn {

// A problem and what it points to.
struct OwnedProblem {
  OwnedProblem() = default;
  OwnedProblem(const OwnedProblem& other) { *this = other; }
  OwnedProblem& operator=(const OwnedProblem& other) {
    blocks = other.blocks;
    channels = other.channels;
    problem = other.problem;
    Point();
    return *this;
  }
  void Point() {
    problem.blocks = blocks;
    problem.channels = channels;
  }

  std::vector<BlockSource> blocks;
  std::vector<RestoreChannel> channels;
  RestoreProblem problem;
};

inline double LogUniform(Rng& rng, double low, double high) {
  return low * std::pow(high / low, rng.Uniform());
}

// Tiers lie in runs, at random, or in a few long stretches; some blocks are absent or on the
// device.
inline std::vector<BlockSource> RandomBlocks(Rng& rng, uint32_t block_count, uint32_t channels) {
  const double change = rng.Chance(0.3) ? 1 : LogUniform(rng, 0.02, 1);
  const double absent = rng.Chance(0.5) ? 0 : 0.3 * rng.Uniform();
  const double device = rng.Chance(0.5) ? 0 : 0.3 * rng.Uniform();
  std::vector<BlockSource> blocks;
  BlockSource source = ThroughChannel(0);
  for (uint32_t i = 0; i < block_count; ++i) {
    if (i == 0 || rng.Chance(change)) {
      source = ThroughChannel(static_cast<uint32_t>(rng.Below(channels)));
      if (rng.Chance(absent)) source = BlockSource::kAbsent;
      if (rng.Chance(device)) source = BlockSource::kDevice;
    }
    blocks.push_back(source);
  }
  return blocks;
}

inline OwnedProblem RandomProblem(Rng& rng, uint32_t block_count, uint32_t channel_count) {
  OwnedProblem made;
  RestoreProblem& problem = made.problem;
  made.blocks = RandomBlocks(rng, block_count, channel_count);
  problem.block_tokens = 1u << rng.Below(5);
  problem.new_tokens = rng.Chance(0.05) ? 0 : static_cast<uint32_t>(LogUniform(rng, 1, 64));
  problem.layers = static_cast<uint32_t>(LogUniform(rng, 1, 81));
  const double passes = LogUniform(rng, 1, 2.0 * block_count);  // that everything would take
  problem.chunk_tokens =
      std::max(1u, static_cast<uint32_t>(block_count / passes)) * problem.block_tokens +
      static_cast<uint32_t>(rng.Below(problem.block_tokens));
  const double block_s = LogUniform(rng, 1e-5, 1e-1);  // to compute
  problem.pass.token_s = block_s / problem.block_tokens;
  if (rng.Chance(0.5)) problem.pass.pass_s = block_s * LogUniform(rng, 0.01, 10);
  if (rng.Chance(0.5)) problem.pass.sweep_s = block_s * LogUniform(rng, 0.1, 30);
  if (rng.Chance(0.3)) problem.pass.decode_rows = static_cast<uint32_t>(rng.Below(20));
  if (rng.Chance(0.8)) {  // the last token costs so much more than the first
    problem.pass.token_position_s =
        problem.pass.token_s * LogUniform(rng, 0.01, 10) / (block_count * problem.block_tokens);
  }
  for (uint32_t c = 0; c < channel_count; ++c) {
    RestoreChannel channel;
    channel.block_s = block_s * LogUniform(rng, 1e-2, 1e2);
    if (rng.Chance(0.5)) channel.latency_s = channel.block_s * LogUniform(rng, 0.01, 10);
    if (rng.Chance(0.3)) channel.backlog_s = channel.block_s * LogUniform(rng, 0.1, 20);
    channel.comes_whole = rng.Chance(0.2);
    if (c > 0 && rng.Chance(0.4)) channel.then = static_cast<uint32_t>(rng.Below(c));
    made.channels.push_back(channel);
  }
  if (rng.Chance(0.2)) {
    problem.wave_tokens_max =
        1 + rng.Below(problem.new_tokens + 2 * block_count * problem.block_tokens);
  }
  if (rng.Chance(0.2)) problem.compute_backlog_s = block_s * LogUniform(rng, 0.1, 20);
  made.Point();
  return made;
}

}  // namespace cairn
