#include "kernels/cuda/copy_batch.h"

#include <vector>

#include "kernels/cuda/block_copies.h"

namespace cairn::cuda {
namespace {

#if CUDART_VERSION >= 13000
cudaError_t CopyByEngines(std::span<const CopyPart> parts, cudaStream_t stream) {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> sizes;
  for (const CopyPart& part : parts) {
    to.push_back(part.to);
    from.push_back(part.from);
    sizes.push_back(part.size_bytes);
  }
  cudaMemcpyAttributes attributes{};  // of all of them, from the first on
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  return cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), sizes.size(), &attributes,
                              &first, 1, stream);
}
#else
cudaError_t CopyByEngines(std::span<const CopyPart> parts, cudaStream_t stream) {
  for (const CopyPart& part : parts) {
    const cudaError_t error =
        cudaMemcpyAsync(part.to, part.from, part.size_bytes, cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
#endif

}  // namespace

cudaError_t CopyBatch(std::span<const CopyPart> parts, cudaStream_t stream) {
  std::vector<CopyPart> small, large;
  for (const CopyPart& part : parts) {
    if (part.size_bytes == 0) continue;
    const bool is_small = part.size_bytes < kEnginePartMin && IsAligned(part);
    (is_small ? small : large).push_back(part);
  }
  if (!large.empty()) {
    const cudaError_t error = CopyByEngines(large, stream);
    if (error != cudaSuccess) return error;
  }
  return small.empty() ? cudaSuccess : LaunchBlockCopies(small, stream);
}

}  // namespace cairn::cuda
