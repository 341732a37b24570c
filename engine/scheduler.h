// What the next step computes, and who gives way when blocks are short: pure functions from values
// to values, so that a policy is tested without an engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace cairn {

// A sequence as the scheduler sees it. Ids are minted in order of arrival.
struct SequenceView {
  SequenceId id;
  uint32_t rows_left = 0;  // rows until its next token can be sampled; 1 when it decodes
  int32_t priority = 0;
  uint32_t restore_rows = 0;  // of rows_left, the first ones: positions that come back
  uint32_t turn = 0;          // among those that have some: who goes first
};

// Rows of a step besides the decode rows.
struct StepBudget {
  uint32_t prefill_rows = 0;
  uint32_t restore_rows = UINT32_MAX;  // of these, for positions that come back
};

struct StepShare {
  SequenceId id;
  uint32_t row_count = 0;
};

// Decode rows first: every sequence with one row left gets it. The budget is shared by the others:
// a quarter is kept for the one that has waited longest at the highest priority, so that nobody
// starves, and the rest goes to the shortest first, so that a short request does not wait for a
// long prompt. Who has positions to bring back gets no further than the budget for those, and goes
// not before one of an earlier turn. The result is in order of arrival.
std::vector<StepShare> PlanStep(std::span<const SequenceView> runnable, const StepBudget& budget);

// Whose blocks go when `requester` needs one and none is free: the lowest priority, of these the
// latest arrival. The requester itself when nobody ranks below it.
SequenceId PickPreempted(std::span<const SequenceView> holders, const SequenceView& requester);

}  // namespace cairn
