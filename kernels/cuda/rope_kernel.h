// RoPE of queries and keys, and the writing of K and V into the blocks of their rows.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

namespace cairn::cuda {

// `rows` is the batch's array of rows in the device's memory. Each rotated element is one product
// and one fused product and sum, the query's scale one product more; K and V are rounded to float16
// once, and what float16 cannot hold becomes its largest value.
cudaError_t LaunchRopeWriteKv(const RopeWriteKvArgs& args, const BatchRow* rows, uint32_t row_count,
                              cudaStream_t stream);

}  // namespace cairn::cuda
