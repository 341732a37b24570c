#include "offload/eviction.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "offload/block.h"

namespace cairn {

double Worth(const EvictionCandidate& candidate) {
  return candidate.cost_s * PriorityWeight(candidate.priority) * candidate.return_rate;
}

namespace {

// The least go first.
double RankUnder(EvictionPolicy policy, const EvictionCandidate& candidate) {
  switch (policy) {
    case EvictionPolicy::kPrices:
    case EvictionPolicy::kFixed:
      return Worth(candidate);
    case EvictionPolicy::kLru:
      return 0;
    case EvictionPolicy::kFifo:
      return static_cast<double>(candidate.seal_order);
    case EvictionPolicy::kLfu:
      return candidate.reuse_count;
  }
  CHECK(false);
}

}  // namespace

std::vector<BlockId> PickVictims(std::span<const EvictionCandidate> view, uint32_t need,
                                 EvictionPolicy policy) {
  struct Ranked {
    double rank;
    uint64_t use_order;
    BlockId block;
    bool operator<(const Ranked& other) const {
      return std::tie(rank, use_order, block) < std::tie(other.rank, other.use_order, other.block);
    }
  };
  std::vector<Ranked> ranked;
  ranked.reserve(view.size());
  for (const EvictionCandidate& candidate : view) {
    ranked.push_back({RankUnder(policy, candidate), candidate.use_order, candidate.block});
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
