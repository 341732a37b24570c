// Products with F32 weights. Few models have them, so the kernel is plain: a warp has one output
// and four rows, and each lane every 32nd k.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kWarpRows = 4;

struct FloatParams {
  PackedMatrix weight;
  const float* x;
  float* y;
  uint32_t row_count;
};

__global__ void __launch_bounds__(kWarps* gpu::kWarpSize, 6)
    FloatProductKernel(FloatParams params) {
  const uint32_t cols = params.weight.cols;
  const uint32_t output = blockIdx.x * kWarps + threadIdx.x / gpu::kWarpSize;
  const uint32_t first_row = blockIdx.y * kWarpRows, lane = threadIdx.x % gpu::kWarpSize;
  if (output >= params.weight.rows) return;
  const float* const weight =
      reinterpret_cast<const float*>(params.weight.data) + size_t{output} * cols;
  float sums[kWarpRows] = {};
  for (uint32_t k = lane; k < cols; k += gpu::kWarpSize) {
    const float factor = __ldg(weight + k);
#pragma unroll
    for (uint32_t i = 0; i < kWarpRows; ++i) {
      if (first_row + i >= params.row_count) break;
      sums[i] = fmaf(factor, params.x[size_t{first_row + i} * cols + k], sums[i]);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kWarpRows; ++i) {
    const float sum = gpu::WarpSum(sums[i]);
    if (lane == 0 && first_row + i < params.row_count) {
      params.y[size_t{first_row + i} * params.weight.rows + output] = sum;
    }
  }
}

}  // namespace

cudaError_t LaunchFloatProduct(const PackedMatrix& weight, const float* x, uint32_t row_count,
                               float* y, cudaStream_t stream) {
  const dim3 grid(CeilDivide(weight.rows, kWarps), CeilDivide(row_count, kWarpRows));
  const FloatParams params = {weight, x, y, row_count};
  return GPU_LAUNCH(&FloatProductKernel, grid, dim3(kWarps * gpu::kWarpSize), 0, stream, params);
}

}  // namespace cairn::cuda
