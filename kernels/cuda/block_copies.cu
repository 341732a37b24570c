#include <algorithm>

#include "kernels/cuda/block_copies.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kThreadVectors = 4;  // on their way at once, so that the bus is kept busy
constexpr uint32_t kBlockVectors = kThreads * kThreadVectors;

struct VectorCopy {
  uint4* to;
  const uint4* from;
  uint32_t vector_count;
};
struct CopyList {
  VectorCopy copies[kLaunchPartsMax];
};
static_assert(sizeof(CopyList) <= 4096);  // what every device takes as a kernel's arguments

// Block (x, y) of the grid: part x of copy y.
__global__ void __launch_bounds__(kThreads, 8) CopyKernel(CopyList list) {
  const VectorCopy copy = list.copies[blockIdx.y];
  const uint32_t first = blockIdx.x * kBlockVectors + threadIdx.x;
  uint4 vectors[kThreadVectors];
#pragma unroll
  for (uint32_t i = 0; i < kThreadVectors; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at < copy.vector_count) vectors[i] = __ldcs(copy.from + at);
  }
#pragma unroll
  for (uint32_t i = 0; i < kThreadVectors; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at < copy.vector_count) __stcs(copy.to + at, vectors[i]);
  }
}

}  // namespace

cudaError_t LaunchBlockCopies(std::span<const CopyPart> parts, cudaStream_t stream) {
  while (!parts.empty()) {
    const size_t count = std::min(parts.size(), kLaunchPartsMax);
    CopyList list = {};
    uint32_t vectors_max = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto vector_count = static_cast<uint32_t>(parts[i].size_bytes / sizeof(uint4));
      list.copies[i] = {static_cast<uint4*>(parts[i].to), static_cast<const uint4*>(parts[i].from),
                        vector_count};
      vectors_max = std::max(vectors_max, vector_count);
    }
    const dim3 grid((vectors_max + kBlockVectors - 1) / kBlockVectors,
                    static_cast<unsigned>(count));
    const cudaError_t error = GPU_LAUNCH(&CopyKernel, grid, dim3(kThreads), 0, stream, list);
    if (error != cudaSuccess) return error;
    parts = parts.subspan(count);
  }
  return cudaSuccess;
}

}  // namespace cairn::cuda
