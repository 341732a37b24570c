// Many copies on one stream, in few calls, of two kinds.
//
// Parts of at least kEnginePartMin bytes go to the copy engines, all of them in one call where the
// runtime has it (cudaMemcpyBatchAsync, CUDA 13), else a call each: an engine fills the bus, and
// takes nothing from the kernels that run meanwhile. Smaller parts are copied by one kernel
// (block_copies.h): to an engine each of them is a command of its own, whose start takes longer
// than so few bytes, while threads of one launch have thousands of loads on the bus at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "kernels/device.h"

namespace cairn::cuda {

// What an engine moves in about the time that it takes to start (a microsecond at 64 GB/s). By
// arithmetic, not measured.
inline constexpr size_t kEnginePartMin = size_t{64} << 10;

// Parts do not overlap. Empty ones are nothing.
cudaError_t CopyBatch(std::span<const CopyPart> parts, cudaStream_t stream);

}  // namespace cairn::cuda
