// Carries out a restore on paper, block by block and layer by layer, to judge the planner by. It
// shares nothing with the planner but the problem and knows none of its shortcuts: any set of
// blocks may be recomputed, and loads may come in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/restore_problem.h"

namespace cairn {

// What is done with the blocks: recomputed[i] of those that are absent or can be loaded.
struct SimulatedRestore {
  std::vector<bool> recomputed;
  std::vector<std::vector<uint32_t>> load_order;  // by channel
};

// Everything that is not recomputed is loaded, by each channel in the order of the blocks.
SimulatedRestore RestoreWith(const RestoreProblem& problem, std::vector<bool> recomputed);

double SimulateFront(const RestoreProblem& problem, const SimulatedRestore& restore);
double SimulateWave(const RestoreProblem& problem, const SimulatedRestore& restore);

}  // namespace cairn
