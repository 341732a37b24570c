// Attention of few queries: one warp (or two) a (16 queries, KV head, span), then the merge of
// their spans.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kParts =
    2;  // as good as float32 in both modes, since loading is what takes time
constexpr uint32_t kMergeThreads = 128;

template <uint32_t kDim>
constexpr uint32_t kSpanThreads = WarpsPerTile(kDim) * gpu::kWarpSize;

template <uint32_t kDim>
using SpanShared = AttentionShared<kDim, kTileQueries, kTilePositions, kParts>;

// Of the rows g and g + 8 of a tile.
template <uint32_t kDim>
__device__ void StorePartial(const AttentionParams& params, const QueryRange& range,
                             uint32_t first_partial, const AttentionWarp<kDim, 1, kParts>& warp) {
  const uint32_t g = threadIdx.x % gpu::kWarpSize / 4, t = threadIdx.x % 4;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t query = g + 8 * half;
    if (query >= range.count) continue;
    const size_t partial = size_t{first_partial + query} * params.kv_head_count + range.kv_head;
    float* const values = params.partial_values + partial * params.head_dim;
#pragma unroll
    for (uint32_t column = 0; column < warp.kValueColumns; ++column) {
      const uint32_t dim = warp.value_dim() + column * 8;
      if (dim >= params.head_dim) break;
      const float(&pair)[4] = warp.values[0][column];
      *reinterpret_cast<float2*>(values + dim + 2 * t) = {pair[2 * half], pair[2 * half + 1]};
    }
    if (t == 0 && warp.value_dim() == 0)
      params.partial_sums[partial] = {warp.max[0][half], warp.sum[0][half]};
  }
}

template <uint32_t kDim>
__global__ void __launch_bounds__(kSpanThreads<kDim>, kDim > 128 ? 6 : 12)
    SpanKernel(AttentionParams params, const AttentionSpanItem* items) {
  GPU_DYNAMIC_SHARED(SpanShared<kDim>, shared);
  const AttentionSpanItem item = items[blockIdx.x / params.kv_head_count];
  if (item.segment == kNoSegment) return;
  const QueryRange range = RangeOf(params, item.segment, blockIdx.x % params.kv_head_count,
                                   item.first_query, kTileQueries);
  const uint32_t begin = item.span * kAttentionSpan;
  const uint32_t last_seen = range.SeenBy(params, range.first + range.count - 1);
  const uint32_t end = last_seen < begin + kAttentionSpan ? last_seen : begin + kAttentionSpan;

  constexpr auto fetch =
      FetchStage<kDim, kSpanThreads<kDim>, kTilePositions, typename SpanShared<kDim>::Stage>;
  fetch(params, range, begin, end, shared->stages[0]);
  LoadQueries<kDim, kTileQueries, kParts>(params, range, *shared);
  const uint32_t g = threadIdx.x % gpu::kWarpSize / 4;
  const uint32_t seen[1][2] = {
      {range.SeenBy(params, range.first + g), range.SeenBy(params, range.first + g + 8)}};
  const uint32_t seen_by_all = range.SeenBy(params, range.first);

  AttentionWarp<kDim, 1, kParts> warp(threadIdx.x / gpu::kWarpSize * ValueDims(kDim));
  uint32_t stage = 0;
  for (uint32_t first = begin; first < end; first += kTilePositions, stage ^= 1) {
    if (first + kTilePositions < end) {
      fetch(params, range, first + kTilePositions, end, shared->stages[stage ^ 1]);
      gpu::WaitCopies<1>();
    } else {
      gpu::WaitCopies<0>();
    }
    __syncthreads();
    warp.Attend(*shared, shared->stages[stage], 0, 0, first, seen,
                first + kTilePositions <= seen_by_all);
    __syncthreads();  // the stage is filled again in the next round
  }
  warp.FinishSums();
  StorePartial(params, range, item.first_partial, warp);
}

// One block a (query, KV head). Spans come in batches: each thread finds the factors of one, then
// all go through them in order.
__global__ void __launch_bounds__(kMergeThreads, 16)
    MergeKernel(AttentionParams params, const AttentionMergeItem* items) {
  GPU_SHARED(sums, float2[kMergeThreads]);
  GPU_SHARED(factors, MergeFactors[kMergeThreads]);
  const AttentionMergeItem item = items[blockIdx.x / params.kv_head_count];
  const uint32_t kv_head = blockIdx.x % params.kv_head_count, query = blockIdx.y;
  if (query >= item.query_count) return;
  const auto partial_of = [&](uint32_t span) {
    return size_t{item.first_partial + span * item.query_count + query} * params.kv_head_count +
           kv_head;
  };
  constexpr uint32_t kDims = 2;  // of a thread: heads have at most 256
  float max = -INFINITY, sum = 0, values[kDims] = {};
  for (uint32_t first = 0; first < item.span_count; first += kMergeThreads) {
    const uint32_t left = item.span_count - first;
    const uint32_t count = left < kMergeThreads ? left : kMergeThreads;
    if (threadIdx.x < count)
      sums[threadIdx.x] = params.partial_sums[partial_of(first + threadIdx.x)];
    __syncthreads();
    // The maximum before a span does not depend on the order in which it is found.
    if (threadIdx.x < count) {
      float before = max;
      for (uint32_t span = 0; span < threadIdx.x; ++span) before = fmaxf(before, sums[span].x);
      float unused = 0;
      factors[threadIdx.x] = MergeSums(before, unused, sums[threadIdx.x].x, 0);
    }
    __syncthreads();
    for (uint32_t span = 0; span < count; ++span) {
      const float* const later = params.partial_values + partial_of(first + span) * params.head_dim;
      sum = fmaf(sum, factors[span].keep, sums[span].y * factors[span].add);
      max = fmaxf(max, sums[span].x);
#pragma unroll
      for (uint32_t i = 0; i < kDims; ++i) {
        const uint32_t dim = threadIdx.x + i * kMergeThreads;
        if (dim < params.head_dim) values[i] = MergeValue(values[i], later[dim], factors[span]);
      }
    }
    __syncthreads();
  }
  const QueryRange range = RangeOf(params, item.segment, kv_head, item.first_query, kTileQueries);
  float* const out = params.out + range.OffsetOf(params, item.first_query + query);
  const float inverse = 1.0f / sum;
#pragma unroll
  for (uint32_t i = 0; i < kDims; ++i) {
    const uint32_t dim = threadIdx.x + i * kMergeThreads;
    if (dim < params.head_dim) out[dim] = FinishValue(values[i], inverse);
  }
}

template <uint32_t kDim>
cudaError_t LaunchSpans(const AttentionParams& params, const AttentionSpanItem* items,
                        uint32_t item_count, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(SpanShared<kDim>);
  if (const cudaError_t error = gpu::AllowSharedBytes(&SpanKernel<kDim>, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const dim3 grid(item_count * params.kv_head_count);
  return GPU_LAUNCH(&SpanKernel<kDim>, grid, dim3(kSpanThreads<kDim>), kBytes, stream, params,
                    items);
}

}  // namespace

cudaError_t LaunchAttentionSpans(const AttentionParams& params, const AttentionSpanItem* items,
                                 uint32_t item_count, cudaStream_t stream) {
  if (item_count == 0) return cudaSuccess;
  if (params.head_dim <= 64) return LaunchSpans<64>(params, items, item_count, stream);
  if (params.head_dim <= 128) return LaunchSpans<128>(params, items, item_count, stream);
  return LaunchSpans<256>(params, items, item_count, stream);
}

cudaError_t LaunchAttentionMerge(const AttentionParams& params, const AttentionMergeItem* items,
                                 uint32_t item_count, cudaStream_t stream) {
  if (item_count == 0) return cudaSuccess;
  const dim3 grid(item_count * params.kv_head_count, kTileQueries);
  return GPU_LAUNCH(&MergeKernel, grid, dim3(kMergeThreads), 0, stream, params, items);
}

}  // namespace cairn::cuda
