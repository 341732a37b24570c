// What every backend's Pack asks of a matrix before it reads its bytes.
#pragma once

#include "base/status.h"
#include "kernels/ops.h"

namespace cairn {

// kInvalidArgument when there is nothing in it, or the bytes are not those of its shape.
Status CheckMatrix(const MatrixView& view);

}  // namespace cairn
