#include "offload/eviction.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "offload/block.h"

namespace cairn {

double Worth(const EvictionCandidate& candidate) {
  const double cost = candidate.token_count * candidate.cost_share *
                      (1 + candidate.first_position / kCostDoublingTokens);
  const double wish = std::exp2((static_cast<double>(candidate.priority) - kPriorityDefault) / 10);
  const double reuse = candidate.reused ? kReusedFactor : 1;
  const std::chrono::duration<double> idle =
      std::max<std::chrono::nanoseconds>(candidate.idle, kIdleMin);
  return cost * wish * reuse / idle.count();
}

std::vector<BlockId> PickVictims(std::span<const EvictionCandidate> view, uint32_t need) {
  struct Ranked {
    double worth;
    uint64_t use_order;
    BlockId block;
    bool operator<(const Ranked& other) const {
      return std::tie(worth, use_order, block) <
             std::tie(other.worth, other.use_order, other.block);
    }
  };
  std::vector<Ranked> ranked;
  ranked.reserve(view.size());
  for (const EvictionCandidate& candidate : view) {
    ranked.push_back({Worth(candidate), candidate.use_order, candidate.block});
  }
  const size_t count = std::min<size_t>(need, ranked.size());
  const auto end = ranked.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(ranked.begin(), end, ranked.end());
  std::sort(ranked.begin(), end);
  std::vector<BlockId> victims;
  victims.reserve(count);
  for (auto it = ranked.begin(); it != end; ++it) victims.push_back(it->block);
  return victims;
}

}  // namespace cairn
