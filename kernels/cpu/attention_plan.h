// How one call of paged attention is cut into strips: a pure function of the shape of the batch and
// the number of threads. Nothing here changes a bit of the result.
//
//   Decode rows (segments of one row): one strip a row, with all its KV heads, because their K and
//   V lie side by side in a block; a strip a KV head where there are too few spans to share out.
//   Chunks: strips of up to kStripQueriesMax queries of one KV head; fewer where that would leave
//   threads without work.
//   A strip that is a large part of the whole is split: its spans are computed one by one by
//   whoever is free, and merged in order afterwards. All others go to one thread each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace cairn {

inline constexpr uint32_t kStripQueriesMax = 192;
inline constexpr uint32_t kStripQueriesMin = 48;

struct AttentionStripPlan {
  uint32_t segment;
  uint32_t row_begin;  // within the segment
  uint32_t row_count;
  uint32_t kv_head_begin;
  uint32_t kv_head_count;
  uint32_t span_count;
  uint64_t cost;  // about the multiplications
};

struct AttentionPlan {
  std::vector<AttentionStripPlan> whole;  // the most costly first
  std::vector<AttentionStripPlan> split;
};

// Replaces the contents of `plan`, keeping its memory.
void PlanAttention(std::span<const AttentionSegment> segments, uint32_t kv_head_count,
                   uint32_t group, uint32_t thread_count, AttentionPlan& plan);

}  // namespace cairn
