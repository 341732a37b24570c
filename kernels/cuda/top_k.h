// The highest logits of each row, so that only what a sampler needs crosses to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace cairn::cuda {

struct RankedLogit {
  float value;
  uint32_t id;
};

inline constexpr uint32_t kTopKMax = 256;

struct TopKArgs {
  const float* logits;  // [row_count, width]
  uint32_t row_count;
  uint32_t width;
  uint32_t k;         // in 1..min(kTopKMax, width)
  RankedLogit* out;   // [row_count, k]
  uint64_t* scratch;  // TopKScratchCount(row_count, width, k) of them
};

// The k highest of each row in order: by value, then by lower id. NaN counts as -infinity, infinity
// as the largest float, and negative zero as zero. Exact.
size_t TopKScratchCount(uint32_t row_count, uint32_t width, uint32_t k);
cudaError_t LaunchTopK(const TopKArgs& args, cudaStream_t stream);

}  // namespace cairn::cuda
