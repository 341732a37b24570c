// What the blocks of both attention kernels share: queries into shared memory, K and V of a stage
// through cp.async, and the merge of spans.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {

inline constexpr float kLog2E = 1.44269504f;

// The queries of one segment and KV head that a block attends with.
struct QueryRange {
  DeviceSegment segment;
  uint32_t kv_head;
  uint32_t first;
  uint32_t count;

  // Where a query's elements are, in q and out.
  __device__ size_t OffsetOf(const AttentionParams& params, uint32_t query) const {
    const size_t row = segment.first_row + query / params.group;
    const uint32_t head = kv_head * params.group + query % params.group;
    return (row * params.head_count + head) * params.head_dim;
  }
  // How many positions a query sees; queries that are not there see what the last one does.
  __device__ uint32_t SeenBy(const AttentionParams& params, uint32_t query) const {
    const uint32_t last = first + count - 1;
    return segment.first_position + (query < last ? query : last) / params.group + 1;
  }
};

__device__ inline QueryRange RangeOf(const AttentionParams& params, uint32_t segment_index,
                                     uint32_t kv_head, uint32_t first, uint32_t query_max) {
  QueryRange range = {params.segments[segment_index], kv_head, first, 0};
  const uint32_t left = range.segment.row_count * params.group - first;
  range.count = left < query_max ? left : query_max;
  return range;
}

// Each warp takes whole queries; those that are not there, and dimensions beyond the head's, are
// zero.
template <uint32_t kDim, uint32_t kQueries, uint32_t kParts, class Shared>
__device__ void LoadQueries(const AttentionParams& params, const QueryRange& range,
                            Shared& shared) {
  const uint32_t lane = threadIdx.x % gpu::kWarpSize;
  for (uint32_t query = threadIdx.x / gpu::kWarpSize; query < kQueries;
       query += blockDim.x / gpu::kWarpSize) {
    const bool is_there = query < range.count;
    const float* const from =
        params.q + (is_there ? range.OffsetOf(params, range.first + query) : 0);
    for (uint32_t dim = 2 * lane; dim < kDim; dim += 2 * gpu::kWarpSize) {
      float2 pair = {};
      if (is_there && dim < params.head_dim) pair = *reinterpret_cast<const float2*>(from + dim);
      uint32_t parts[kParts];
      SplitPair(pair.x * kLog2E, pair.y * kLog2E, parts);
#pragma unroll
      for (uint32_t part = 0; part < kParts; ++part) {
        *reinterpret_cast<uint32_t*>(&shared.queries[part][query][dim]) = parts[part];
      }
    }
  }
}

// Begins to copy positions [first, first + kStagePositions) of a KV head; those from `end` on, and
// dimensions beyond the head's, become zero: what lies there may be undefined.
template <uint32_t kDim, uint32_t kThreads, uint32_t kStagePositions, class Stage>
__device__ void FetchStage(const AttentionParams& params, const QueryRange& range, uint32_t first,
                           uint32_t end, Stage& stage) {
  const size_t head_offset = size_t{range.kv_head} * params.head_bytes;
  const uint32_t tokens = params.block_tokens;
  // Keys: eight positions of a dimension at a time, as many as lie side by side.
  const uint32_t run = (tokens < kStagePositions ? tokens : kStagePositions) / 8;
  for (uint32_t octet = 0; octet < kStagePositions / 8; octet += run) {
    const uint32_t run_first = first + octet * 8;
    const std::byte* const block =
        run_first < end ? range.segment.blocks[run_first / tokens] : nullptr;
    const __half* const keys =
        reinterpret_cast<const __half*>(block + params.key_offset + head_offset) +
        run_first % tokens;
    for (uint32_t i = threadIdx.x; i < run * kDim; i += kThreads) {
      const uint32_t dim = i / run, place = i % run;
      const bool is_there = run_first + place * 8 < end && dim < params.head_dim;
      const void* const from =
          is_there ? static_cast<const void*>(keys + size_t{dim} * tokens + place * 8) : params.q;
      gpu::CopyAsync16(&stage.keys[octet + place][dim * 8], from, is_there);
    }
  }
  constexpr uint32_t kRowVectors = kDim / 8;
  for (uint32_t i = threadIdx.x; i < kStagePositions * kRowVectors; i += kThreads) {
    const uint32_t row = i / kRowVectors, dim = i % kRowVectors * 8, position = first + row;
    const bool is_there = position < end && dim < params.head_dim;
    const void* from = params.q;
    if (is_there) {
      const std::byte* const block = range.segment.blocks[position / tokens];
      from = reinterpret_cast<const __half*>(block + params.value_offset + head_offset) +
             size_t{position % tokens} * params.head_dim + dim;
    }
    gpu::CopyAsync16(&stage.values[row][dim], from, is_there);
  }
  gpu::CommitCopies();
}

// How a later span joins what there is so far.
struct MergeFactors {
  float keep;
  float add;
};
__device__ inline MergeFactors MergeSums(float& max, float& sum, float later_max, float later_sum) {
  const float both = fmaxf(max, later_max);
  const MergeFactors factors = {exp2f(max - both), exp2f(later_max - both)};
  max = both;
  sum = fmaf(sum, factors.keep, later_sum * factors.add);
  return factors;
}
__device__ inline float MergeValue(float value, float later, const MergeFactors& factors) {
  return fmaf(value, factors.keep, later * factors.add);
}
// Adding zero makes a negative zero positive: which of them a sum of nothing but masked or
// vanishing terms gives would otherwise depend on the path.
__device__ inline float FinishValue(float value, float inverse_sum) {
  return __fadd_rn(__fmul_rn(value, inverse_sum), 0.0f);
}

}  // namespace cairn::cuda
