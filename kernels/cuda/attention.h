// Causal attention over paged K and V on tensor cores (mma m16n8k16), K and V read with
// ldmatrix.trans as they lie in the blocks (kernels/kv_layout.h).
//
// The queries of a segment for one KV head are numbered row * group + head: all query heads that
// share a KV head are rows of the same tiles, so its K and V are loaded once for them.
//
// Each span of kAttentionSpan positions is attended by itself, in tiles of 32 positions with a
// running maximum, and spans are merged in increasing order by log-sum-exp. Few queries: one warp a
// (span, 16 queries), so that a long context keeps the whole device busy, then a merge. Many
// queries: one block a chunk of 32 to 128 queries, over all of their spans. In exact mode both do
// the same arithmetic for a query, so that its bits do not depend on the choice: queries and
// probabilities are split into two float16 each, which together hold 22 bits. In fast mode chunks
// take them as one float16, and do not stop at the edges of spans.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace cairn::cuda {

// A segment as the device sees it.
struct DeviceSegment {
  uint32_t first_row;
  uint32_t row_count;
  uint32_t first_position;
  const std::byte* const* blocks;  // a device address
};

inline constexpr uint32_t kTileQueries = 16;
inline constexpr uint32_t kNoSegment = UINT32_MAX;
// Segments with more queries for a KV head are attended in chunks.
inline constexpr uint32_t kSpanQueriesMax = 64;

// What one warp, or one block, has to do for every KV head.
struct AttentionSpanItem {
  uint32_t segment;  // kNoSegment: nothing
  uint32_t first_query;
  uint32_t span;
  uint32_t first_partial;  // where its queries' partial results begin
};
struct AttentionChunkItem {
  uint32_t segment;
  uint32_t first_query;
};
// The spans of up to 16 queries; the partial results of the next span lie query_count further on.
struct AttentionMergeItem {
  uint32_t segment;
  uint32_t first_query;
  uint32_t query_count;
  uint32_t span_count;
  uint32_t first_partial;
};

// The work of one batch, in the order of its segments.
struct AttentionPlan {
  std::vector<AttentionSpanItem> spans;
  std::vector<AttentionMergeItem> merges;
  std::vector<AttentionChunkItem> chunks;
  uint32_t partial_count = 0;  // queries times spans
};
// Segments whose partial results would be more than `partials_max` in all are attended in chunks.
void PlanAttention(std::span<const AttentionSegment> segments, uint32_t group,
                   uint32_t chunk_queries, size_t partials_max, AttentionPlan& plan);

// What batches within the limits may take. There is room for the partial results of one row of each
// context at its longest, and of one segment of kSpanQueriesMax queries: recomputing many short
// pieces of long contexts in one pass is rare, and would take gigabytes.
struct AttentionRoom {
  size_t repeated_spans;  // of a batch of one row a segment, whose spans are a power of two
  size_t partials;
  size_t plan_bytes;  // of all items
};
AttentionRoom AttentionRoomOf(const BatchLimits& limits, uint32_t group, uint32_t chunk_queries);
// Of a repeated batch there is room for at least so many.
inline constexpr size_t kRepeatedSpansMin = 16;

// All addresses are the device's.
struct AttentionParams {
  const float* q;
  float* out;
  const DeviceSegment* segments;
  float* partial_values;  // [partial][kv head][head_dim]
  float2* partial_sums;   // [partial][kv head]: {maximum, sum}
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t group;
  uint32_t head_dim;
  uint32_t block_tokens;
  uint32_t head_bytes;
  size_t key_offset;    // of the layer's first KV head in a block
  size_t value_offset;  // likewise
};

// Queries of one chunk.
constexpr uint32_t ChunkQueries(ComputeMode mode, uint32_t head_dim) {
  if (mode == ComputeMode::kFast) return head_dim <= 128 ? 128 : 64;
  return head_dim <= 128 ? 64 : 32;
}

// head_dim is a multiple of 8, at most 256; a block has 16, 32 or 64 tokens.
cudaError_t LaunchAttentionSpans(const AttentionParams& params, const AttentionSpanItem* items,
                                 uint32_t item_count, cudaStream_t stream);
cudaError_t LaunchAttentionMerge(const AttentionParams& params, const AttentionMergeItem* items,
                                 uint32_t item_count, cudaStream_t stream);
cudaError_t LaunchAttentionChunks(const AttentionParams& params, ComputeMode mode,
                                  const AttentionChunkItem* items, uint32_t item_count,
                                  cudaStream_t stream);

}  // namespace cairn::cuda
