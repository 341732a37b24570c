#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product_dense.h"
#include "kernels/cuda/product_tile.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * gpu::kWarpSize;
constexpr uint32_t kThreadElements = 8;
constexpr float kHalfMax = 65504.0f;
// Rows with no larger element lose bits: float16 has 11 of them down to 2^-14.
constexpr float kWellHeldMin = 0x1p-8f;
// A row that is multiplied has its largest element between 2^14 and 2^15.
constexpr int kLargestExponent = 14;
constexpr int kExponentBias = 127, kFractionBits = 23;  // of float32
constexpr uint32_t kInfinityBits = 0x7f800000u;

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

// The largest magnitude of the block, in every thread, as bits: a NaN is larger than anything.
__device__ uint32_t BlockMax(uint32_t bits, uint32_t (&warp_max)[kWarps]) {
#pragma unroll
  for (int distance = gpu::kWarpSize / 2; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(gpu::kFullWarp, bits, distance);
    bits = other > bits ? other : bits;
  }
  if (threadIdx.x % gpu::kWarpSize == 0) warp_max[threadIdx.x / gpu::kWarpSize] = bits;
  __syncthreads();
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    bits = warp_max[warp] > bits ? warp_max[warp] : bits;
  }
  return bits;
}

// The power of two by which a row is divided before it is rounded: 0 where float16 holds it well.
__device__ int ExponentOfRow(uint32_t max_bits) {
  const float max = __uint_as_float(max_bits);
  const bool is_void = max < kActivationMin || max_bits >= kInfinityBits;
  if (is_void || (max >= kWellHeldMin && max <= kHalfMax)) return 0;
  return static_cast<int>(max_bits >> kFractionBits) - kExponentBias - kLargestExponent;
}

__device__ float PowerOfTwo(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent + kExponentBias) << kFractionBits);
}

// One block a row, which it reads twice, the second time out of a cache.
__global__ void __launch_bounds__(kThreads, 8)
    RoundKernel(const float4* x, uint32_t row_vectors, uint4* out, float* row_scales) {
  GPU_SHARED(warp_max, uint32_t[kWarps]);
  const float4* const row = x + size_t{blockIdx.x} * 2 * row_vectors;
  uint32_t bits = 0;
  for (uint32_t i = threadIdx.x; i < 2 * row_vectors; i += kThreads) {
    const uint4 lanes = __ldg(reinterpret_cast<const uint4*>(row) + i);
    for (const uint32_t lane : {lanes.x, lanes.y, lanes.z, lanes.w}) {
      const uint32_t magnitude = lane & 0x7fffffffu;
      bits = magnitude > bits ? magnitude : bits;
    }
  }
  const int exponent = ExponentOfRow(BlockMax(bits, warp_max));
  const float inverse = PowerOfTwo(-exponent);
  if (threadIdx.x == 0) row_scales[blockIdx.x] = PowerOfTwo(exponent);
  uint4* const to = out + size_t{blockIdx.x} * row_vectors;
  for (uint32_t i = threadIdx.x; i < row_vectors; i += kThreads) {
    const float4 low = __ldg(row + 2 * i), high = __ldg(row + 2 * i + 1);
    to[i] = {RoundPair(low.x * inverse, low.y * inverse),
             RoundPair(low.z * inverse, low.w * inverse),
             RoundPair(high.x * inverse, high.y * inverse),
             RoundPair(high.z * inverse, high.w * inverse)};
  }
}

// One block a row.
__global__ void __launch_bounds__(kThreads, 8)
    RescaleKernel(float* y, uint32_t output_count, const float* row_scales) {
  const float scale = __ldg(row_scales + blockIdx.x);
  if (scale == 1) return;
  float* const row = y + size_t{blockIdx.x} * output_count;
  for (uint32_t i = threadIdx.x; i < output_count; i += kThreads) row[i] *= scale;
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

cudaError_t LaunchRound(const float* x, uint32_t row_count, uint32_t cols, uint16_t* out,
                        float* row_scales, cudaStream_t stream) {
  return GPU_LAUNCH(&RoundKernel, dim3(row_count), dim3(kThreads), 0, stream,
                    reinterpret_cast<const float4*>(x), cols / kThreadElements,
                    reinterpret_cast<uint4*>(out), row_scales);
}

cudaError_t LaunchRescale(float* y, uint32_t row_count, uint32_t output_count,
                          const float* row_scales, cudaStream_t stream) {
  return GPU_LAUNCH(&RescaleKernel, dim3(row_count), dim3(kThreads), 0, stream, y, output_count,
                    row_scales);
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
