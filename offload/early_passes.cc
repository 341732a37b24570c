#include "offload/early_passes.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace cairn {

void EarlyPasses::Clear(double begin_s) {
  states_.clear();
  states_.push_back({.end_s = begin_s});
}

void EarlyPasses::Add(uint32_t tokens, double position_sum, double ready_s) {
  CHECK(tokens > 0);
  State next = {.tokens = states_.back().tokens + tokens,
                .position_sum = states_.back().position_sum + position_sum,
                .end_s = std::numeric_limits<double>::infinity()};
  for (size_t begin = states_.size(); begin-- > 0;) {
    const State& before = states_[begin];
    const uint64_t rows = next.tokens - before.tokens;
    if (rows > tokens_max_ && begin + 1 < states_.size()) break;
    const double end_s = std::max(before.end_s, ready_s) +
                         costs_.Seconds(rows, next.position_sum - before.position_sum);
    if (end_s < next.end_s) {
      next.end_s = end_s;
      next.pass_begin = begin;
    }
    if (before.end_s <= ready_s) break;  // a longer pass begins no sooner
  }
  states_.push_back(next);
}

size_t EarlyPasses::FirstPassCount() const {
  size_t end = count();
  while (states_[end].pass_begin > 0) end = states_[end].pass_begin;
  return end;
}

}  // namespace cairn
