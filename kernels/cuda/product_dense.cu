#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product_dense.h"
#include "kernels/cuda/product_tile.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * gpu::kWarpSize;
constexpr uint32_t kThreadElements = 8;

struct UnpackParams {
  PackedMatrix weight;
  uint16_t* out;
  uint32_t first_panel;
  uint32_t panel_count;
};

__device__ uint32_t RoundPair(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Two codes as float16, scaled.
__device__ uint32_t ScalePair(uint32_t codes, float scale, float offset) {
  return RoundPair(fmaf(scale, LowHalf(codes), offset), fmaf(scale, HighHalf(codes), offset));
}

// A warp takes one block of a panel; a lane has eight elements of two outputs in each group.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 4) UnpackKernel(UnpackParams params) {
  const PackedMatrix& weight = params.weight;
  const uint32_t lane = threadIdx.x % gpu::kWarpSize, g = lane / 4, t = lane % 4;
  const size_t warp = size_t{blockIdx.x} * kWarps + threadIdx.x / gpu::kWarpSize;
  const uint32_t panel = static_cast<uint32_t>(warp / weight.block_count);
  const uint32_t block_index = static_cast<uint32_t>(warp % weight.block_count);
  if (panel >= params.panel_count) return;
  const size_t source = size_t{params.first_panel + panel} * weight.block_count + block_index;
  PanelBlock<kType> block;
  block.Load(weight.data + source * BlockBytes(kType), lane);
#pragma unroll
  for (uint32_t group = 0; group < kBlockGroups; ++group) {
    uint32_t a[2][4];
    block.Fragments(group, a);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t row = panel * kPanelOutputs + g + 8 * half;
      const uint32_t output = params.first_panel * kPanelOutputs + row;
      const uint32_t k = block_index * kBlockCols + group * kQuantGroup + t * kThreadElements;
      if (output >= weight.rows || k >= weight.cols) continue;
      float scale, offset = 0;
      if constexpr (kType == TensorType::kF16) {
        scale = __ldg(weight.output_scales + output);
      } else {
        scale = block.Scale(group, half);
      }
      if constexpr (kType == TensorType::kQ4_1) offset = block.Offset(group, half);
      const uint4 halves = {
          ScalePair(a[0][half], scale, offset), ScalePair(a[0][half + 2], scale, offset),
          ScalePair(a[1][half], scale, offset), ScalePair(a[1][half + 2], scale, offset)};
      *reinterpret_cast<uint4*>(params.out + size_t{row} * weight.cols + k) = halves;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 8)
    RoundKernel(const float4* x, size_t vectors, uint4* out) {
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const float4 low = __ldg(x + 2 * i), high = __ldg(x + 2 * i + 1);
  out[i] = {RoundPair(low.x, low.y), RoundPair(low.z, low.w), RoundPair(high.x, high.y),
            RoundPair(high.z, high.w)};
}

template <TensorType kType>
cudaError_t Launch(const UnpackParams& params, cudaStream_t stream) {
  const size_t warps = size_t{params.panel_count} * params.weight.block_count;
  const dim3 grid(static_cast<unsigned>((warps + kWarps - 1) / kWarps));
  return GPU_LAUNCH(&UnpackKernel<kType>, grid, dim3(kThreads), 0, stream, params);
}

}  // namespace

cudaError_t LaunchUnpack(const PackedMatrix& weight, uint32_t first_output, uint32_t output_count,
                         uint16_t* out, cudaStream_t stream) {
  const UnpackParams params = {weight, out, first_output / kPanelOutputs,
                               CeilDivide(output_count, kPanelOutputs)};
  switch (weight.type) {
    case TensorType::kQ4_0:
      return Launch<TensorType::kQ4_0>(params, stream);
    case TensorType::kQ4_1:
      return Launch<TensorType::kQ4_1>(params, stream);
    case TensorType::kQ8_0:
      return Launch<TensorType::kQ8_0>(params, stream);
    case TensorType::kF16:
      return Launch<TensorType::kF16>(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchRound(const float* x, size_t count, uint16_t* out, cudaStream_t stream) {
  const size_t vectors = count / kThreadElements;
  const dim3 grid(static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  return GPU_LAUNCH(&RoundKernel, grid, dim3(kThreads), 0, stream,
                    reinterpret_cast<const float4*>(x), vectors, reinterpret_cast<uint4*>(out));
}

// cuBLAS thinks in columns: what is [row, column] to us is [column, row] to it.
cublasStatus_t MultiplyDense(cublasHandle_t handle, const DenseProduct& product) {
  const float one = 1, zero = 0;
  const auto output_count = static_cast<int>(product.output_count);
  const auto row_count = static_cast<int>(product.row_count);
  const auto cols = static_cast<int>(product.cols);
  return cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, output_count, row_count, cols, &one,
                      product.weight, CUDA_R_16F, cols, product.x, CUDA_R_16F, cols, &zero,
                      product.y, CUDA_R_32F, static_cast<int>(product.output_stride),
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

}  // namespace cairn::cuda
