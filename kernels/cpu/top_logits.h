// The logits of highest rank of each row, as kernels/ops.h defines them.
#pragma once

#include "kernels/ops.h"

namespace cairn {

void SelectTopLogits(const TopLogitsArgs& args);

}  // namespace cairn
