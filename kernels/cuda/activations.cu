// Splits activations for the products (product_format.h).
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kThreadElements = 8;
constexpr uint32_t kGroupThreads = kQuantGroup / kThreadElements;
constexpr uint32_t kInfinityBits = 0x7f800000u;

struct SplitParams {
  const float* x;
  uint32_t cols;
  SplitActivations out;
};

__device__ void LoadElements(const SplitParams& params, size_t row, uint32_t first,
                             float (&x)[kThreadElements]) {
  const float* const from = params.x + row * params.cols + first;
  if (params.cols % 4 == 0 && first + kThreadElements <= params.cols) {
    const float4 low = __ldg(reinterpret_cast<const float4*>(from));
    const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < kThreadElements; ++i) x[i] = first + i < params.cols ? from[i] : 0.0f;
}

// The largest magnitude of the group, in all of its lanes, as bits: a NaN is larger than anything.
__device__ uint32_t GroupMax(const float (&x)[kThreadElements]) {
  uint32_t max = 0;
#pragma unroll
  for (uint32_t i = 0; i < kThreadElements; ++i) {
    const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
    max = magnitude > max ? magnitude : max;
  }
#pragma unroll
  for (uint32_t distance = 1; distance < kGroupThreads; distance *= 2) {
    const uint32_t other = __shfl_xor_sync(gpu::kFullWarp, max, static_cast<int>(distance));
    max = other > max ? other : max;
  }
  return max;
}

__device__ uint32_t HalfBits(int value) {
  return __half_as_ushort(__float2half_rn(static_cast<float>(value)));
}

// Four lanes a group.
__global__ void __launch_bounds__(kThreads, 8) SplitKernel(SplitParams params) {
  const uint32_t row_threads = params.out.group_count * kGroupThreads;
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  const size_t row = thread / row_threads;
  const uint32_t part = static_cast<uint32_t>(thread % row_threads);
  const bool is_there = row < params.out.row_count;
  float x[kThreadElements] = {};
  if (is_there) LoadElements(params, row, part * kThreadElements, x);

  const uint32_t max_bits = GroupMax(x);
  const float max = __uint_as_float(max_bits);
  const bool is_zero = max < kActivationMin;
  // Of infinite or undefined activations the scale tells; their whole numbers are void.
  const bool is_void = is_zero || max_bits >= kInfinityBits;
  const float scale = is_zero ? 0.0f : max / kActivationLimit;
  const float inverse = is_void ? 0.0f : kActivationLimit / max;
  uint32_t hi[kThreadElements / 2] = {}, lo[kThreadElements / 2] = {};
  int sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kThreadElements; ++i) {
    const int whole = is_void ? 0 : __float2int_rn(x[i] * inverse);
    const int high = (whole + 1024) >> 11;
    hi[i / 2] |= HalfBits(high) << (16 * (i % 2));
    lo[i / 2] |= HalfBits(whole - high * 2048) << (16 * (i % 2));
    sum += whole;
  }
#pragma unroll
  for (uint32_t distance = 1; distance < kGroupThreads; distance *= 2) {
    sum += __shfl_xor_sync(gpu::kFullWarp, sum, static_cast<int>(distance));
  }
  if (!is_there) return;
  const size_t group = row * params.out.group_count + part / kGroupThreads;
  const uint32_t t = part % kGroupThreads;
  uint4* const halves =
      reinterpret_cast<uint4*>(params.out.halves + group * kActivationGroupHalves);
  halves[t] = {hi[0], hi[1], hi[2], hi[3]};
  halves[kGroupThreads + t] = {lo[0], lo[1], lo[2], lo[3]};
  if (t == 0) params.out.scales[group] = {scale, scale * static_cast<float>(sum)};
}

}  // namespace

cudaError_t LaunchSplitActivations(const float* x, uint32_t cols, const SplitActivations& out,
                                   cudaStream_t stream) {
  const size_t threads = size_t{out.row_count} * out.group_count * kGroupThreads;
  if (threads == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  const SplitParams params = {x, cols, out};
  return GPU_LAUNCH(&SplitKernel, grid, dim3(kThreads), 0, stream, params);
}

}  // namespace cairn::cuda
