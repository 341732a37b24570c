#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace cairn {
namespace {

// Higher priority first, then who came first.
bool RanksAbove(const SequenceView& a, const SequenceView& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.id < b.id;
}

}  // namespace

std::vector<StepShare> PlanStep(std::span<const SequenceView> runnable, uint32_t prefill_rows_max) {
  std::vector<StepShare> plan;
  std::vector<SequenceView> prefills;
  for (const SequenceView& view : runnable) {
    CHECK(view.rows_left > 0);
    if (view.rows_left == 1) {
      plan.push_back({view.id, 1});
    } else {
      prefills.push_back(view);
    }
  }
  if (!prefills.empty() && prefill_rows_max > 0) {
    const SequenceView first = *std::min_element(prefills.begin(), prefills.end(), RanksAbove);
    std::sort(prefills.begin(), prefills.end(), [](const SequenceView& a, const SequenceView& b) {
      return a.rows_left != b.rows_left ? a.rows_left < b.rows_left : RanksAbove(a, b);
    });
    const uint32_t kept = std::min(first.rows_left, std::max(1u, prefill_rows_max / 4));
    uint32_t open = prefill_rows_max - kept;
    for (const SequenceView& view : prefills) {
      const uint32_t own = view.id == first.id ? kept : 0;
      const uint32_t row_count = own + std::min(view.rows_left - own, open);
      open -= row_count - own;
      if (row_count > 0) plan.push_back({view.id, row_count});
    }
  }
  std::sort(plan.begin(), plan.end(),
            [](const StepShare& a, const StepShare& b) { return a.id < b.id; });
  return plan;
}

SequenceId PickPreempted(std::span<const SequenceView> holders, const SequenceView& requester) {
  const SequenceView* lowest = &requester;
  for (const SequenceView& view : holders) {
    if (RanksAbove(*lowest, view)) lowest = &view;
  }
  return lowest->id;
}

}  // namespace cairn
