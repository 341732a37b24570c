#include "tests/restore_simulator.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cairn {
namespace {

// The time of one pass over these tokens.
double PassSeconds(const PassCosts& costs, const std::vector<uint64_t>& positions) {
  if (positions.empty()) return 0;
  double sum = 0;
  for (const uint64_t position : positions) sum += static_cast<double>(position);
  const double rows = static_cast<double>(positions.size() + costs.decode_rows);
  return costs.pass_s + std::max(costs.sweep_s, rows * costs.token_s) +
         costs.token_position_s * sum;
}

void AppendBlock(const RestoreProblem& problem, uint64_t block, std::vector<uint64_t>& positions) {
  for (uint64_t t = 0; t < problem.block_tokens; ++t) {
    positions.push_back(block * problem.block_tokens + t);
  }
}

void AppendNew(const RestoreProblem& problem, std::vector<uint64_t>& positions) {
  const uint64_t begin = uint64_t{problem.block_tokens} * problem.blocks.size();
  for (uint64_t t = 0; t < problem.new_tokens; ++t) positions.push_back(begin + t);
}

// How many blocks cross each channel when so many of each channel's own ones are loaded.
std::vector<uint32_t> Crossings(const RestoreProblem& problem, const std::vector<uint32_t>& own) {
  std::vector<uint32_t> crossings(own.size(), 0);
  for (uint32_t c = 0; c < own.size(); ++c) {
    uint32_t at = c;
    crossings[at] += own[c];
    while (problem.channels[at].then.has_value()) {
      at = *problem.channels[at].then;
      crossings[at] += own[c];
    }
  }
  return crossings;
}

// When the first own[c] blocks of every channel's order are there.
double LoadedAt(const RestoreProblem& problem, const std::vector<uint32_t>& own) {
  const std::vector<uint32_t> crossings = Crossings(problem, own);
  double at = 0;
  for (uint32_t c = 0; c < own.size(); ++c) {
    if (crossings[c] == 0) continue;
    const RestoreChannel& channel = problem.channels[c];
    at = std::max(at, channel.backlog_s + channel.latency_s + crossings[c] * channel.block_s);
  }
  return at;
}

std::vector<uint32_t> OwnCounts(const SimulatedRestore& restore) {
  std::vector<uint32_t> own;
  for (const auto& order : restore.load_order) own.push_back(static_cast<uint32_t>(order.size()));
  return own;
}

}  // namespace

SimulatedRestore RestoreWith(const RestoreProblem& problem, std::vector<bool> recomputed) {
  SimulatedRestore restore;
  restore.load_order.resize(problem.channels.size());
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    if (!IsLoadable(problem.blocks[i]) || recomputed[i]) continue;
    restore.load_order[ChannelOf(problem.blocks[i])].push_back(i);
  }
  restore.recomputed = std::move(recomputed);
  return restore;
}

namespace {

// Something to compute, no part of which may begin before it is ready.
struct Piece {
  std::vector<uint64_t> positions;
  double ready_at = 0;
};

std::vector<Piece> PiecesOf(const RestoreProblem& problem, const SimulatedRestore& restore) {
  std::vector<Piece> pieces;
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    if (problem.blocks[i] == BlockSource::kDevice || !restore.recomputed[i]) continue;
    std::vector<uint32_t> needed;
    for (const auto& order : restore.load_order) {
      uint32_t count = static_cast<uint32_t>(order.size());
      while (count > 0 && order[count - 1] > i) --count;
      needed.push_back(count);
    }
    Piece& piece = pieces.emplace_back(Piece{.ready_at = LoadedAt(problem, needed)});
    AppendBlock(problem, i, piece.positions);
  }
  if (problem.new_tokens > 0) {
    Piece& piece = pieces.emplace_back(Piece{.ready_at = LoadedAt(problem, OwnCounts(restore))});
    AppendNew(problem, piece.positions);
  }
  return pieces;
}

// Of all ways to cut the pieces into passes, the one that ends first.
double SimulateEarlyFront(const RestoreProblem& problem, const SimulatedRestore& restore) {
  const std::vector<Piece> pieces = PiecesOf(problem, restore);
  const double loaded_at = LoadedAt(problem, OwnCounts(restore));
  std::vector<double> done = {problem.compute_backlog_s};  // so many of the pieces, at best
  for (size_t end = 1; end <= pieces.size(); ++end) {
    done.push_back(HUGE_VAL);
    std::vector<uint64_t> positions;
    for (size_t begin = end; begin-- > 0;) {
      const std::vector<uint64_t>& added = pieces[begin].positions;
      positions.insert(positions.end(), added.begin(), added.end());
      if (positions.size() > problem.chunk_tokens && begin + 1 < end) break;
      const double start = std::max(done[begin], pieces[end - 1].ready_at);
      done[end] = std::min(done[end], start + PassSeconds(problem.pass, positions));
    }
  }
  return pieces.empty() ? loaded_at : std::max(done.back(), loaded_at);
}

}  // namespace

double SimulateFront(const RestoreProblem& problem, const SimulatedRestore& restore) {
  if (problem.starts_early) return SimulateEarlyFront(problem, restore);
  double clock = problem.compute_backlog_s;
  bool computed = false;
  std::vector<uint64_t> positions;  // of the pass that is being put together
  const auto run_pass = [&](uint32_t last_block) {
    std::vector<uint32_t> needed;  // of each channel's order
    for (const auto& order : restore.load_order) {
      uint32_t count = static_cast<uint32_t>(order.size());
      while (count > 0 && order[count - 1] > last_block) --count;
      needed.push_back(count);
    }
    clock = std::max(clock, LoadedAt(problem, needed)) + PassSeconds(problem.pass, positions);
    computed = true;
    positions.clear();
  };
  uint32_t last_block = 0;
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    const bool missing = problem.blocks[i] != BlockSource::kDevice;
    if (!missing || !restore.recomputed[i]) continue;
    if (positions.size() + problem.block_tokens > problem.chunk_tokens) run_pass(last_block);
    AppendBlock(problem, i, positions);
    last_block = i;
  }
  if (!positions.empty()) run_pass(last_block);
  const double loaded_at = LoadedAt(problem, OwnCounts(restore));
  AppendNew(problem, positions);
  if (positions.empty() && !computed) return loaded_at;
  return std::max(clock, loaded_at) + PassSeconds(problem.pass, positions);
}

double SimulateWave(const RestoreProblem& problem, const SimulatedRestore& restore) {
  std::vector<uint64_t> positions;
  for (uint32_t i = 0; i < problem.blocks.size(); ++i) {
    if (problem.blocks[i] == BlockSource::kDevice || !restore.recomputed[i]) continue;
    AppendBlock(problem, i, positions);
  }
  AppendNew(problem, positions);
  const std::vector<uint32_t> crossings = Crossings(problem, OwnCounts(restore));
  std::vector<uint64_t> pass;  // tokens of one, in their order
  std::vector<double> pass_s;
  for (const uint64_t position : positions) {
    pass.push_back(position);
    if (pass.size() < problem.wave_tokens_max) continue;
    pass_s.push_back(PassSeconds(problem.pass, pass));
    pass.clear();
  }
  if (!pass.empty()) pass_s.push_back(PassSeconds(problem.pass, pass));
  const double layer_s = (pass_s.empty() ? 0 : pass_s.front()) / problem.layers;
  double clock = positions.empty() ? 0 : problem.compute_backlog_s;
  for (uint32_t layer = 1; layer <= problem.layers; ++layer) {
    double ready = 0;
    for (uint32_t c = 0; c < crossings.size(); ++c) {
      if (crossings[c] == 0) continue;
      const RestoreChannel& channel = problem.channels[c];
      const double load = channel.latency_s + crossings[c] * channel.block_s;
      const uint32_t layers_before = channel.comes_whole ? problem.layers : layer;
      ready = std::max(ready, channel.backlog_s + load * layers_before / problem.layers);
    }
    clock = std::max(clock, ready) + layer_s;
  }
  for (size_t i = 1; i < pass_s.size(); ++i) clock += pass_s[i];
  return clock;
}

}  // namespace cairn
