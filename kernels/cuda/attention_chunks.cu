// Attention of many queries: one block a (KV head, 32 to 128 queries), over all the positions that
// they see.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {
namespace {

// In exact mode, what all spans but the current one gave to the queries of a warp. Each lane sees
// its own part alone, and the first span is stored before anything is read.
template <uint32_t kValueDims>
class SpanTotals {
 public:
  // Adds a finished span, and makes the warp ready for the next.
  template <class Warp>
  __device__ void Merge(bool is_first, Warp& warp) {
    const uint32_t lane = threadIdx.x % gpu::kWarpSize;
    warp.FinishSums();
    MergeFactors factors[2];
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      float max = is_first ? -INFINITY : sums_[half][lane].x;
      float sum = is_first ? 0.0f : sums_[half][lane].y;
      factors[half] = MergeSums(max, sum, warp.max[0][half], warp.sum[0][half]);
      sums_[half][lane] = {max, sum};
    }
#pragma unroll
    for (uint32_t column = 0; column < kValueDims / 8; ++column) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        float& value = values_[column * 4 + i][lane];
        const float before = is_first ? 0.0f : value;
        value = MergeValue(before, warp.values[0][column][i], factors[i / 2]);
      }
    }
    warp.Clear();
  }

  // Into the warp's state, as if it were one span.
  template <class Warp>
  __device__ void Take(Warp& warp) const {
    const uint32_t lane = threadIdx.x % gpu::kWarpSize;
#pragma unroll
    for (uint32_t column = 0; column < kValueDims / 8; ++column) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) warp.values[0][column][i] = values_[column * 4 + i][lane];
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) warp.sum[0][half] = sums_[half][lane].y;
  }

 private:
  float values_[kValueDims / 2][gpu::kWarpSize];
  float2 sums_[2][gpu::kWarpSize];  // {maximum, sum}
};

// Chosen so that every device from compute capability 8.0 on has the shared memory, and where
// registers allow it two blocks have it side by side (228 KiB, on 9.0).
template <uint32_t kDim, ComputeMode kMode>
struct ChunkShape {
  static constexpr bool kExact = kMode == ComputeMode::kExact;
  static constexpr uint32_t kQueries = ChunkQueries(kMode, kDim);
  static constexpr uint32_t kWarps = 4;
  static constexpr uint32_t kThreads = kWarps * gpu::kWarpSize;
  static constexpr uint32_t kWarpTiles = kQueries * WarpsPerTile(kDim) / kWarps / kTileQueries;
  static constexpr uint32_t kParts = kExact ? 2 : 1;
  static constexpr uint32_t kStagePositions = kDim <= (kExact ? 64 : 128) ? 64 : 32;
  using Warp = AttentionWarp<kDim, kWarpTiles, kParts>;

  struct NoTotals {};
  using Totals = std::conditional_t<kExact, SpanTotals<ValueDims(kDim)>, NoTotals>;
  struct Shared : AttentionShared<kDim, kQueries, kStagePositions, kParts> {
    [[no_unique_address]] Totals totals[kWarps];
  };
};

template <uint32_t kDim, uint32_t kTiles, uint32_t kParts>
__device__ void StoreOut(const AttentionParams& params, const QueryRange& range,
                         uint32_t warp_query, const AttentionWarp<kDim, kTiles, kParts>& warp) {
  const uint32_t g = threadIdx.x % gpu::kWarpSize / 4, t = threadIdx.x % 4;
#pragma unroll
  for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t query = warp_query + tile * kTileQueries + g + 8 * half;
      if (query >= range.count) continue;
      float* const out = params.out + range.OffsetOf(params, range.first + query);
      const float inverse = 1.0f / warp.sum[tile][half];
#pragma unroll
      for (uint32_t column = 0; column < warp.kValueColumns; ++column) {
        const uint32_t dim = warp.value_dim() + column * 8;
        if (dim >= params.head_dim) break;
        const float(&pair)[4] = warp.values[tile][column];
        *reinterpret_cast<float2*>(out + dim + 2 * t) = {FinishValue(pair[2 * half], inverse),
                                                         FinishValue(pair[2 * half + 1], inverse)};
      }
    }
  }
}

template <uint32_t kDim, ComputeMode kMode>
__global__ void __launch_bounds__(ChunkShape<kDim, kMode>::kThreads, 2)
    ChunkKernel(AttentionParams params, const AttentionChunkItem* items) {
  using Shape = ChunkShape<kDim, kMode>;
  constexpr uint32_t kTiles = Shape::kWarpTiles, kStagePositions = Shape::kStagePositions;
  GPU_DYNAMIC_SHARED(typename Shape::Shared, shared);
  const AttentionChunkItem item = items[blockIdx.x / params.kv_head_count];
  const QueryRange range = RangeOf(params, item.segment, blockIdx.x % params.kv_head_count,
                                   item.first_query, Shape::kQueries);
  const uint32_t end = range.SeenBy(params, range.first + range.count - 1);
  constexpr auto fetch =
      FetchStage<kDim, Shape::kThreads, kStagePositions, typename Shape::Shared::Stage>;
  fetch(params, range, 0, end, shared->stages[0]);
  LoadQueries<kDim, Shape::kQueries, Shape::kParts>(params, range, *shared);

  const uint32_t warp_index = threadIdx.x / gpu::kWarpSize;
  const uint32_t warp_query = warp_index / WarpsPerTile(kDim) * kTiles * kTileQueries;
  const uint32_t first_row = range.first + warp_query + threadIdx.x % gpu::kWarpSize / 4;
  uint32_t seen[kTiles][2];
#pragma unroll
  for (uint32_t tile = 0; tile < kTiles; ++tile) {
    seen[tile][0] = range.SeenBy(params, first_row + tile * kTileQueries);
    seen[tile][1] = range.SeenBy(params, first_row + tile * kTileQueries + 8);
  }
  const uint32_t seen_by_all = range.SeenBy(params, range.first + warp_query);
  const uint32_t seen_by_any =
      range.SeenBy(params, range.first + warp_query + kTiles * kTileQueries - 1);

  typename Shape::Warp warp(warp_index % WarpsPerTile(kDim) * ValueDims(kDim));
  uint32_t stage = 0;
  for (uint32_t first = 0; first < end; first += kStagePositions, stage ^= 1) {
    const uint32_t next = first + kStagePositions;
    if (next < end) {
      fetch(params, range, next, end, shared->stages[stage ^ 1]);
      gpu::WaitCopies<1>();
    } else {
      gpu::WaitCopies<0>();
    }
    __syncthreads();
#pragma unroll
    for (uint32_t part = 0; part < kStagePositions; part += kTilePositions) {
      if (first + part >= seen_by_any) break;
      warp.Attend(*shared, shared->stages[stage], part, warp_query, first + part, seen,
                  first + part + kTilePositions <= seen_by_all);
    }
    if constexpr (Shape::kExact) {
      const bool is_span_done = next % kAttentionSpan == 0 || next >= seen_by_any;
      if (first < seen_by_any && is_span_done) {
        shared->totals[warp_index].Merge(first < kAttentionSpan, warp);
      }
    }
    __syncthreads();  // the stage is filled again in the next round
  }
  if constexpr (Shape::kExact) {
    shared->totals[warp_index].Take(warp);
  } else {
    warp.FinishSums();
  }
  StoreOut(params, range, warp_query, warp);
}

template <uint32_t kDim, ComputeMode kMode>
cudaError_t LaunchChunks(const AttentionParams& params, const AttentionChunkItem* items,
                         uint32_t item_count, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(typename ChunkShape<kDim, kMode>::Shared);
  if (const cudaError_t error = gpu::AllowSharedBytes(&ChunkKernel<kDim, kMode>, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const dim3 grid(item_count * params.kv_head_count);
  return GPU_LAUNCH((&ChunkKernel<kDim, kMode>), grid, dim3(ChunkShape<kDim, kMode>::kThreads),
                    kBytes, stream, params, items);
}

template <ComputeMode kMode>
cudaError_t LaunchMode(const AttentionParams& params, const AttentionChunkItem* items,
                       uint32_t item_count, cudaStream_t stream) {
  if (params.head_dim <= 64) return LaunchChunks<64, kMode>(params, items, item_count, stream);
  if (params.head_dim <= 128) return LaunchChunks<128, kMode>(params, items, item_count, stream);
  return LaunchChunks<256, kMode>(params, items, item_count, stream);
}

}  // namespace

cudaError_t LaunchAttentionChunks(const AttentionParams& params, ComputeMode mode,
                                  const AttentionChunkItem* items, uint32_t item_count,
                                  cudaStream_t stream) {
  if (item_count == 0) return cudaSuccess;
  return mode == ComputeMode::kExact
             ? LaunchMode<ComputeMode::kExact>(params, items, item_count, stream)
             : LaunchMode<ComputeMode::kFast>(params, items, item_count, stream);
}

}  // namespace cairn::cuda
