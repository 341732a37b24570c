#include <algorithm>
#include <bit>

#include "kernels/cuda/attention.h"

namespace cairn::cuda {
namespace {

void PlanSpans(const AttentionSegment& segment, uint32_t index, uint32_t group,
               AttentionPlan& plan) {
  const uint32_t query_count = segment.row_count * group;
  for (uint32_t first = 0; first < query_count; first += kTileQueries) {
    const uint32_t count = std::min(kTileQueries, query_count - first);
    const uint32_t last_position = segment.first_position + (first + count - 1) / group;
    const uint32_t span_count = last_position / kAttentionSpan + 1;
    plan.merges.push_back({.segment = index,
                           .first_query = first,
                           .query_count = count,
                           .span_count = span_count,
                           .first_partial = plan.partial_count});
    for (uint32_t span = 0; span < span_count; ++span) {
      plan.spans.push_back({.segment = index,
                            .first_query = first,
                            .span = span,
                            .first_partial = plan.partial_count});
      plan.partial_count += count;
    }
  }
}

}  // namespace

AttentionRoom AttentionRoomOf(const BatchLimits& limits, uint32_t group, uint32_t chunk_queries) {
  const size_t positions = size_t{limits.context_blocks_max} * limits.block_tokens;
  const size_t spans = (positions + kAttentionSpan - 1) / kAttentionSpan;
  const size_t tiles = (group + kTileQueries - 1) / kTileQueries;
  const size_t chunks = (group + chunk_queries - 1) / chunk_queries;
  AttentionRoom room = {};
  room.repeated_spans =
      std::bit_ceil(std::max(limits.contexts_max * tiles * spans, kRepeatedSpansMin));
  room.partials = room.repeated_spans * std::min(group, kTileQueries) + kSpanQueriesMax * spans;
  room.plan_bytes =
      room.partials * sizeof(AttentionSpanItem) +
      limits.rows_max * (tiles * sizeof(AttentionMergeItem) + chunks * sizeof(AttentionChunkItem));
  return room;
}

void PlanAttention(std::span<const AttentionSegment> segments, uint32_t group,
                   uint32_t chunk_queries, size_t partials_max, AttentionPlan& plan) {
  plan.spans.clear();
  plan.merges.clear();
  plan.chunks.clear();
  plan.partial_count = 0;
  for (uint32_t index = 0; index < segments.size(); ++index) {
    const AttentionSegment& segment = segments[index];
    const uint32_t query_count = segment.row_count * group;
    const uint32_t position_count = segment.first_position + segment.row_count;
    const size_t span_count = (position_count + kAttentionSpan - 1) / kAttentionSpan;
    const bool has_room = plan.partial_count + query_count * span_count <= partials_max;
    if (query_count <= kSpanQueriesMax && has_room) {
      PlanSpans(segment, index, group, plan);
      continue;
    }
    // The last queries see the most, so they begin first.
    const uint32_t chunk_count = (query_count + chunk_queries - 1) / chunk_queries;
    for (uint32_t chunk = chunk_count; chunk-- > 0;) {
      plan.chunks.push_back({.segment = index, .first_query = chunk * chunk_queries});
    }
  }
}

}  // namespace cairn::cuda
