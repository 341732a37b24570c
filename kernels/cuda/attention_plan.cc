#include <algorithm>

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

void PlanAttention(std::span<const AttentionSegment> segments, uint32_t group,
                   uint32_t chunk_queries, AttentionPlan& plan) {
  plan.spans.clear();
  plan.merges.clear();
  plan.chunks.clear();
  plan.partial_count = 0;
  for (uint32_t index = 0; index < segments.size(); ++index) {
    const AttentionSegment& segment = segments[index];
    const uint32_t query_count = segment.row_count * group;
    if (query_count <= kSpanQueriesMax) {
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
