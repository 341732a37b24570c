// Rows of a packed table as float32.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/product_format.h"

namespace cairn::cuda {

// out[r] = table row rows[r].token. One rounding for types with an offset, none for the others,
// except that BF16 loses what is below 2^-39 of the largest magnitude of its row.
cudaError_t LaunchEmbed(const PackedMatrix& table, const BatchRow* rows, uint32_t row_count,
                        float* out, cudaStream_t stream);

}  // namespace cairn::cuda
