#include "kernels/cuda/gpu.h"
#include "tests/cuda_fragments.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kMatrix = 8;  // rows and columns of what ldmatrix loads

__device__ uint32_t Pair(uint16_t low, uint16_t high) { return low | uint32_t{high} << 16; }

__device__ void LoadPlain(const FragmentProduct& product, uint32_t (&a)[4], uint32_t (&b)[2]) {
  const uint32_t g = threadIdx.x / 4, t = threadIdx.x % 4;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
    const uint16_t* const from = product.a + row * kFragmentDepth + k;
    a[i] = Pair(from[0], from[1]);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    const uint16_t* const from = product.b + (2 * t + i * 8) * kFragmentColumns + g;
    b[i] = Pair(from[0], from[kFragmentColumns]);
  }
}

// Matrix i of a: rows i % 2 * 8, k i / 2 * 8; of b: k i * 8.
template <bool kTransposed>
__device__ void LoadByMatrices(const FragmentProduct& product, uint32_t (&a)[4], uint32_t (&b)[2]) {
  GPU_SHARED(tile_a, uint4[kFragmentRows * kFragmentDepth / 8]);
  GPU_SHARED(tile_b, uint4[kFragmentDepth * kFragmentColumns / 8]);
  auto* const halves_a = reinterpret_cast<uint16_t*>(tile_a);
  auto* const halves_b = reinterpret_cast<uint16_t*>(tile_b);
  const uint32_t lane = threadIdx.x;
  for (uint32_t i = lane; i < kFragmentRows * kFragmentDepth; i += gpu::kWarpSize) {
    const uint32_t row = i / kFragmentDepth, k = i % kFragmentDepth;
    halves_a[kTransposed ? k * kFragmentRows + row : i] = product.a[i];
  }
  for (uint32_t i = lane; i < kFragmentDepth * kFragmentColumns; i += gpu::kWarpSize) {
    const uint32_t k = i / kFragmentColumns, column = i % kFragmentColumns;
    halves_b[kTransposed ? i : column * kFragmentDepth + k] = product.b[i];
  }
  __syncwarp();
  const uint32_t inner = lane % kMatrix, matrix = lane / kMatrix;
  const uint32_t rows = matrix % 2 * kMatrix, depth = matrix / 2 * kMatrix;
  gpu::LoadMatrices<kTransposed>(a, kTransposed
                                        ? &halves_a[(depth + inner) * kFragmentRows + rows]
                                        : &halves_a[(rows + inner) * kFragmentDepth + depth]);
  const uint32_t depth_b = matrix % 2 * kMatrix;
  gpu::LoadMatrices<kTransposed>(b, kTransposed ? &halves_b[(depth_b + inner) * kFragmentColumns]
                                                : &halves_b[inner * kFragmentDepth + depth_b]);
}

template <FragmentLoad kLoad>
__global__ void __launch_bounds__(gpu::kWarpSize) ProductKernel(FragmentProduct product) {
  uint32_t a[4], b[2];
  if constexpr (kLoad == FragmentLoad::kPlain) {
    LoadPlain(product, a, b);
  } else {
    LoadByMatrices<kLoad == FragmentLoad::kTransposed>(product, a, b);
  }
  float sums[4];
  const uint32_t g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto place = [&](uint32_t i) { return (g + i / 2 * 8) * kFragmentColumns + 2 * t + i % 2; };
  for (uint32_t i = 0; i < 4; ++i) sums[i] = product.c[place(i)];
  gpu::Mma(sums, a, b, sums);
  for (uint32_t i = 0; i < 4; ++i) product.d[place(i)] = sums[i];
}

template <bool kTransposed>
__global__ void __launch_bounds__(gpu::kWarpSize)
    LoadKernel(const uint16_t* matrices, uint32_t* words) {
  GPU_SHARED(rows, uint4[4 * kMatrix]);
  const uint32_t lane = threadIdx.x;
  rows[lane] = reinterpret_cast<const uint4*>(matrices)[lane];
  __syncwarp();
  uint32_t loaded[4];
  gpu::LoadMatrices<kTransposed>(loaded, &rows[lane]);
  for (uint32_t i = 0; i < 4; ++i) words[lane * 4 + i] = loaded[i];
}

__global__ void __launch_bounds__(gpu::kWarpSize) CopyAsyncKernel(const uint4* from, uint4* to) {
  GPU_SHARED(landed, uint4[gpu::kWarpSize]);
  const uint32_t lane = threadIdx.x;
  gpu::CopyAsync16(&landed[lane], from + lane, lane % 2 == 0);
  gpu::CommitCopies();
  gpu::WaitCopies<0>();
  __syncwarp();
  to[lane] = landed[lane];
}

}  // namespace

cudaError_t LaunchFragmentProduct(FragmentLoad load, const FragmentProduct& product,
                                  cudaStream_t stream) {
  const dim3 one(1), warp(gpu::kWarpSize);
  switch (load) {
    case FragmentLoad::kPlain:
      return GPU_LAUNCH(&ProductKernel<FragmentLoad::kPlain>, one, warp, 0, stream, product);
    case FragmentLoad::kRows:
      return GPU_LAUNCH(&ProductKernel<FragmentLoad::kRows>, one, warp, 0, stream, product);
    case FragmentLoad::kTransposed:
      return GPU_LAUNCH(&ProductKernel<FragmentLoad::kTransposed>, one, warp, 0, stream, product);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchLoadMatrices(bool transposed, const uint16_t* matrices, uint32_t* words,
                               cudaStream_t stream) {
  const dim3 one(1), warp(gpu::kWarpSize);
  if (transposed) return GPU_LAUNCH(&LoadKernel<true>, one, warp, 0, stream, matrices, words);
  return GPU_LAUNCH(&LoadKernel<false>, one, warp, 0, stream, matrices, words);
}

cudaError_t LaunchCopyAsync(const uint4* from, uint4* to, cudaStream_t stream) {
  return GPU_LAUNCH(&CopyAsyncKernel, dim3(1), dim3(gpu::kWarpSize), 0, stream, from, to);
}

}  // namespace cairn::cuda
