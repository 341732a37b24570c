// The decision: for each block of a context that comes back, reload or recompute. A pure function
// from a problem to a plan; it touches nothing, and equal problems give equal plans.
//
// kCairn prices Front, Wave, load-all and recompute-all, each with its best counts
// (restore_search.h), and takes the one of least predicted time; load-all when what is gained over
// it lies within the uncertainty. The rivals:
//   kGreedy     a block is recomputed when its tokens take less time than its way through the
//               slowest of its channels; then Front or Wave, whichever is predicted to end first.
//   kThreshold  everything is loaded when the blocks before the first absent one hold at least
//               kThresholdTokens that would be loaded, else everything is recomputed. So LMCache
//               does it for vLLM (min_retrieve_tokens), where a hit is a prefix.
//   kCake       one cut: recomputes what is missing before it and loads what lies behind it, last
//               block first; where both meet (Jin and others: Compute Or Load KV Cache? Why Not
//               Both?, ICML 2025). Executed as Front.
//   kCut        one cut behind cut_share of the context, whatever it costs: to find the best cut by
//               trying them. Loads go forward. Executed as Front.
//   kWave       the Wave of least predicted time, whatever the others take. Where there is none,
//               the plan of kCairn, which says why (RestorePlan::no_wave).
// Time grows with the number of sources and of runs; 8,192 blocks in 4 tiers take tens of
// microseconds. A scratch and a plan that are used again allocate nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/restore_layout.h"
#include "offload/restore_plan.h"
#include "offload/restore_problem.h"

namespace cairn {

inline constexpr uint32_t kThresholdTokens = 256;

struct RestoreScratch {
  RestoreLayout layout;
};

void PlanRestore(const RestoreProblem& problem, RestorePolicy policy, RestoreScratch& scratch,
                 RestorePlan& plan);
RestorePlan PlanRestore(const RestoreProblem& problem,
                        RestorePolicy policy = RestorePolicy::kCairn);

// Several contexts come back at once over the same channels and the same compute. The one whose
// time alone is least over its weight goes first, unless the sum of the weighted times is less when
// it changes places with the next; each is planned with the backlog that those before it leave.
// Channels and costs of all problems are the same. (Weighted shortest processing time first: Smith,
// Various Optimizers for Single-Stage Production, 1956.)
struct QueuedRestore {
  uint32_t problem = 0;  // which one
  RestorePlan plan;      // its times count from now, waiting included
};
std::vector<QueuedRestore> PlanRestores(std::span<const RestoreProblem> problems,
                                        RestorePolicy policy = RestorePolicy::kCairn);

}  // namespace cairn
