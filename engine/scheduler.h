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
};

struct StepShare {
  SequenceId id;
  uint32_t row_count = 0;
};

// Decode rows first: every sequence with one row left gets it. `prefill_rows_max` further rows are
// shared by the others: a quarter is kept for the one that has waited longest at the highest
// priority, so that nobody starves, and the rest goes to the shortest first, so that a short
// request does not wait for a long prompt. The result is in order of arrival.
std::vector<StepShare> PlanStep(std::span<const SequenceView> runnable, uint32_t prefill_rows_max);

// Whose blocks go when `requester` needs one and none is free: the lowest priority, of these the
// latest arrival. The requester itself when nobody ranks below it.
SequenceId PickPreempted(std::span<const SequenceView> holders, const SequenceView& requester);

}  // namespace cairn
