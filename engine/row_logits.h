// The logits that a pass gives for one row: all of them, one a vocabulary id, or the highest alone,
// in order of rank (kernels/ops.h), when it was said that they are enough.
#pragma once

#include <span>

#include "kernels/ops.h"

namespace cairn {

struct RowLogits {  // one of the two is empty
  std::span<const float> all;
  std::span<const RankedLogit> highest;
};

}  // namespace cairn
