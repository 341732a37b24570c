#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {
namespace {

// Higher priority first, then who came first.
bool RanksAbove(const SequenceView& a, const SequenceView& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.id < b.id;
}

// What is left of a budget.
class OpenRows {
 public:
  explicit OpenRows(const StepBudget& budget) : rows_(budget) {}

  // How far `view` may come, having `own` rows already.
  uint32_t RowsFor(const SequenceView& view, uint32_t own) const {
    const uint32_t restore_left = view.restore_rows - std::min(own, view.restore_rows);
    const uint32_t left =
        restore_left > rows_.restore_rows ? rows_.restore_rows : view.rows_left - own;
    return own + std::min(left, rows_.prefill_rows);
  }
  // `view` goes from `own` rows to `row_count`.
  void Take(const SequenceView& view, uint32_t own, uint32_t row_count) {
    rows_.prefill_rows -= row_count - own;
    rows_.restore_rows -= std::min(row_count, view.restore_rows) - std::min(own, view.restore_rows);
  }

 private:
  StepBudget rows_;
};

uint32_t QuarterOf(uint32_t rows) { return rows == 0 ? 0 : std::max(1u, rows / 4); }

// The shortest first; but of two that bring contexts back, the one of the earlier turn.
void SortByLength(std::vector<SequenceView>& prefills) {
  const auto is_shorter = [](const SequenceView& a, const SequenceView& b) {
    return a.rows_left != b.rows_left ? a.rows_left < b.rows_left : RanksAbove(a, b);
  };
  const auto prompts = std::partition(prefills.begin(), prefills.end(),
                                      [](const auto& view) { return view.restore_rows > 0; });
  std::sort(prefills.begin(), prompts, [&](const SequenceView& a, const SequenceView& b) {
    return a.turn != b.turn ? a.turn < b.turn : is_shorter(a, b);
  });
  std::sort(prompts, prefills.end(), is_shorter);
  std::vector<SequenceView> sorted;
  for (auto restore = prefills.begin(), prompt = prompts; sorted.size() < prefills.size();) {
    const bool has_both = restore != prompts && prompt != prefills.end();
    const bool is_restore = has_both ? is_shorter(*restore, *prompt) : restore != prompts;
    sorted.push_back(is_restore ? *restore++ : *prompt++);
  }
  prefills = std::move(sorted);
}

// Adds the shares of those that have more than a row to go.
void ShareBudget(std::vector<SequenceView> prefills, const StepBudget& budget,
                 std::vector<StepShare>& plan) {
  const SequenceView first = *std::min_element(prefills.begin(), prefills.end(), RanksAbove);
  SortByLength(prefills);
  const OpenRows quarter({QuarterOf(budget.prefill_rows), QuarterOf(budget.restore_rows)});
  const uint32_t kept = quarter.RowsFor(first, 0);
  OpenRows open(budget);
  open.Take(first, 0, kept);
  for (const SequenceView& view : prefills) {
    const uint32_t own = view.id == first.id ? kept : 0;
    const uint32_t row_count = open.RowsFor(view, own);
    open.Take(view, own, row_count);
    if (row_count > 0) plan.push_back({view.id, row_count});
  }
}

}  // namespace

std::vector<StepShare> PlanStep(std::span<const SequenceView> runnable, const StepBudget& budget) {
  std::vector<StepShare> plan;
  std::vector<SequenceView> prefills;
  for (const SequenceView& view : runnable) {
    CHECK(view.rows_left > 0 && view.restore_rows <= view.rows_left);
    if (view.rows_left == 1) {
      plan.push_back({view.id, 1});
    } else {
      prefills.push_back(view);
    }
  }
  if (!prefills.empty()) ShareBudget(std::move(prefills), budget, plan);
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
