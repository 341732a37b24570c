#include "kernels/cuda/block_copies.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kThreadVectors = 4;  // on their way at once, so that the bus is kept busy
constexpr uint32_t kBlockVectors = kThreads * kThreadVectors;

// Block (x, y) of the grid: part x of copy y.
__global__ void __launch_bounds__(kThreads, 8)
    CopyKernel(const BlockCopy* copies, uint32_t vector_count) {
  const BlockCopy copy = copies[blockIdx.y];
  const uint4* const from = reinterpret_cast<const uint4*>(copy.from);
  uint4* const to = reinterpret_cast<uint4*>(copy.to);
  const uint32_t first = blockIdx.x * kBlockVectors + threadIdx.x;
  uint4 vectors[kThreadVectors];
#pragma unroll
  for (uint32_t i = 0; i < kThreadVectors; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at < vector_count) vectors[i] = __ldcs(from + at);
  }
#pragma unroll
  for (uint32_t i = 0; i < kThreadVectors; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at < vector_count) __stcs(to + at, vectors[i]);
  }
}

}  // namespace

cudaError_t LaunchBlockCopies(const BlockCopy* copies, uint32_t count, size_t size_bytes,
                              cudaStream_t stream) {
  if (size_bytes % sizeof(uint4) != 0 || size_bytes / sizeof(uint4) > UINT32_MAX) {
    return cudaErrorInvalidValue;
  }
  const auto vector_count = static_cast<uint32_t>(size_bytes / sizeof(uint4));
  constexpr uint32_t kGridRowsMax = 65535;
  for (uint32_t first = 0; vector_count > 0 && first < count; first += kGridRowsMax) {
    const uint32_t left = count - first;
    const dim3 grid((vector_count + kBlockVectors - 1) / kBlockVectors,
                    left < kGridRowsMax ? left : kGridRowsMax);
    const cudaError_t error =
        GPU_LAUNCH(&CopyKernel, grid, dim3(kThreads), 0, stream, copies + first, vector_count);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace cairn::cuda
