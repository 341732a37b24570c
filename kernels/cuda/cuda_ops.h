// The operations of kernels/ops.h as kernels on a CUDA device.
//
// Exact mode is batch-invariant: the bits of a row do not depend on what else is in the batch, nor
// on how a sequence was cut into chunks. In fast mode products of many rows go to cuBLAS with
// float16 operands, and chunks are attended with float16 queries and weights: the same batches give
// the same bits, other batches nearly the same numbers.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace cairn::cuda {

// `device` outlives the result; its streams are CudaStreams. What a kernel needs beside its
// arguments is taken when a batch first needs it, and kept.
Result<std::unique_ptr<Ops>> MakeCudaOps(Device& device, ComputeMode mode);

}  // namespace cairn::cuda
