#include "kernels/cuda/gpu.h"
#include "kernels/cuda/row_kernels.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kRowThreads = 256;
constexpr uint32_t kRowWarps = kRowThreads / gpu::kWarpSize;
constexpr uint32_t kElementThreads = 256;

// What one thread touches at once: a vector of four where all rows are aligned for it, else one.
template <class Vector>
constexpr uint32_t kLanesOf = sizeof(Vector) / sizeof(float);

__device__ float* Lanes(float& value) { return &value; }
__device__ float* Lanes(float4& value) { return &value.x; }

// The sum over the block, in every thread.
__device__ float BlockSum(float value, float (&warp_sums)[kRowWarps]) {
  const float warp_sum = gpu::WarpSum(value);
  if (threadIdx.x % gpu::kWarpSize == 0) warp_sums[threadIdx.x / gpu::kWarpSize] = warp_sum;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (uint32_t warp = 0; warp < kRowWarps; ++warp) sum += warp_sums[warp];
  return sum;
}

// One block a row. A thread reads again what it wrote itself, so the row needs no shared memory.
template <class Vector>
__global__ void __launch_bounds__(kRowThreads, 8) RmsNormKernel(RmsNormArgs args) {
  constexpr uint32_t kLanes = kLanesOf<Vector>;
  GPU_SHARED(warp_sums, float[kRowWarps]);
  const uint32_t vectors = args.width / kLanes;
  const size_t start = size_t{blockIdx.x} * vectors;
  Vector* const x = reinterpret_cast<Vector*>(args.x) + start;
  const Vector* const delta =
      args.delta == nullptr ? nullptr : reinterpret_cast<const Vector*>(args.delta) + start;
  const Vector* const gain = reinterpret_cast<const Vector*>(args.gain);
  Vector* const out = reinterpret_cast<Vector*>(args.out) + start;  // may be delta

  float squares = 0;
  for (uint32_t i = threadIdx.x; i < vectors; i += kRowThreads) {
    Vector value = x[i];
    if (delta != nullptr) {
      Vector change = delta[i];
#pragma unroll
      for (uint32_t lane = 0; lane < kLanes; ++lane) Lanes(value)[lane] += Lanes(change)[lane];
      x[i] = value;
    }
#pragma unroll
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      squares = fmaf(Lanes(value)[lane], Lanes(value)[lane], squares);
    }
  }
  const float mean = BlockSum(squares, warp_sums) / static_cast<float>(args.width);
  const float scale = 1.0f / sqrtf(mean + args.epsilon);
  for (uint32_t i = threadIdx.x; i < vectors; i += kRowThreads) {
    Vector value = x[i];
    Vector factor = gain[i];
#pragma unroll
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      Lanes(value)[lane] = Lanes(value)[lane] * scale * Lanes(factor)[lane];
    }
    out[i] = value;
  }
}

// exp overflows to infinity for very negative gates, whose quotient is then zero, as it should be.
__device__ float SiluTimes(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

template <class Vector>
__global__ void __launch_bounds__(kElementThreads, 8)
    SwiGluKernel(SwiGluArgs args, size_t vectors) {
  const size_t i = size_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i >= vectors) return;
  Vector gate = reinterpret_cast<const Vector*>(args.gate)[i];
  Vector up = reinterpret_cast<const Vector*>(args.up)[i];
#pragma unroll
  for (uint32_t lane = 0; lane < kLanesOf<Vector>; ++lane) {
    Lanes(gate)[lane] = SiluTimes(Lanes(gate)[lane], Lanes(up)[lane]);
  }
  reinterpret_cast<Vector*>(args.out)[i] = gate;
}

}  // namespace

cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.row_count == 0) return cudaSuccess;
  const dim3 grid(args.row_count);
  if (args.width % kLanesOf<float4> == 0) {
    return GPU_LAUNCH(&RmsNormKernel<float4>, grid, dim3(kRowThreads), 0, stream, args);
  }
  return GPU_LAUNCH(&RmsNormKernel<float>, grid, dim3(kRowThreads), 0, stream, args);
}

cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream) {
  const size_t count = size_t{args.row_count} * args.width;
  if (count == 0) return cudaSuccess;
  const bool is_vector = args.width % kLanesOf<float4> == 0;
  const size_t vectors = is_vector ? count / kLanesOf<float4> : count;
  const dim3 grid(static_cast<unsigned>((vectors + kElementThreads - 1) / kElementThreads));
  if (is_vector) {
    return GPU_LAUNCH(&SwiGluKernel<float4>, grid, dim3(kElementThreads), 0, stream, args, vectors);
  }
  return GPU_LAUNCH(&SwiGluKernel<float>, grid, dim3(kElementThreads), 0, stream, args, vectors);
}

}  // namespace cairn::cuda
