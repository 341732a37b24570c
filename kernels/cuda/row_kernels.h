// Operations on single rows: RMSNorm and SwiGLU. The launchers take the arguments of
// kernels/ops.h; every pointer in them is a device address. Each row's arithmetic depends on its
// width alone, so its bits are the same at any place in any batch.
//
// Matrices whose width is a multiple of four begin at a multiple of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

namespace cairn::cuda {

// The sum of squares is taken by 256 threads, each over every 256th vector of four (or number),
// then over the lanes of a warp as a tree, then over the warps in order: at most width / 256 + 15
// roundings in a row.
cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream);

cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream);

}  // namespace cairn::cuda
