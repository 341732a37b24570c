// Products of many rows in fast mode: weights and activations as float16 in row-major order, for
// cuBLAS. A product then has one rounding to float16 for each factor, and sums in float32.
#pragma once

#include <cublas_v2.h>

#include "kernels/cuda/product_format.h"

namespace cairn::cuda {

// What a weight must have for it: rows of float16 that begin at a multiple of 16 bytes.
constexpr bool HasDenseProduct(const PackedMatrix& weight) {
  return weight.type != TensorType::kF32 && weight.cols % 8 == 0;
}

// Outputs [first_output, first_output + output_count) as [output_count, cols]; both begin and end
// at a panel, or end at the last output.
cudaError_t LaunchUnpack(const PackedMatrix& weight, uint32_t first_output, uint32_t output_count,
                         uint16_t* out, cudaStream_t stream);

// Activations as float16. A row whose largest magnitude float16 would not hold, or would hold with
// few bits, is multiplied by a power of two first; row_scales says what its products must be
// multiplied by, which is 1 for nearly all rows. What is infinite or undefined stays so.
// x, out: [row_count, cols]; cols is a multiple of 8.
cudaError_t LaunchRound(const float* x, uint32_t row_count, uint32_t cols, uint16_t* out,
                        float* row_scales, cudaStream_t stream);
// y *= row_scales, for the rows whose scale is not 1. y: [row_count, output_count].
cudaError_t LaunchRescale(float* y, uint32_t row_count, uint32_t output_count,
                          const float* row_scales, cudaStream_t stream);

struct DenseProduct {
  const uint16_t* weight;  // [output_count, cols]
  const uint16_t* x;       // [row_count, cols]
  float* y;                // [row_count, output_stride], of which output_count columns are written
  uint32_t output_count;
  uint32_t output_stride;
  uint32_t row_count;
  uint32_t cols;
};
// On the stream of the handle.
cublasStatus_t MultiplyDense(cublasHandle_t handle, const DenseProduct& product);

}  // namespace cairn::cuda
