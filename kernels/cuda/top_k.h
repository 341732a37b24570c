// The highest logits of each row, so that only what a sampler needs crosses to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace cairn::cuda {

// What LaunchTopLogits needs as scratch memory.
size_t TopLogitsScratchCount(const TopLogitsArgs& args);
cudaError_t LaunchTopLogits(const TopLogitsArgs& args, uint64_t* scratch, cudaStream_t stream);

}  // namespace cairn::cuda
