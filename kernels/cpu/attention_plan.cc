#include "kernels/cpu/attention_plan.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr uint32_t kStripsPerThread = 4;
// What it costs to bring in a position, in queries that attend to it.
constexpr uint64_t kPositionCost = 8;

uint32_t SpanCount(uint32_t position_count) {
  return (position_count + kAttentionSpan - 1) / kAttentionSpan;
}

AttentionStripPlan MakeStrip(const AttentionSegment& segment, uint32_t segment_index,
                             uint32_t row_begin, uint32_t row_end, uint32_t group) {
  const uint64_t rows = row_end - row_begin;
  const uint64_t first = uint64_t{segment.first_position} + row_begin + 1;  // positions it sees
  const uint64_t last = uint64_t{segment.first_position} + row_end;
  AttentionStripPlan strip{};
  strip.segment = segment_index;
  strip.row_begin = row_begin;
  strip.row_count = row_end - row_begin;
  strip.kv_head_count = 1;
  strip.span_count = SpanCount(static_cast<uint32_t>(last));
  strip.cost = (first + last) * rows / 2 * group + last * kPositionCost;
  return strip;
}

// Rows a strip of a chunk, such that there are enough strips for the threads.
uint32_t RowsPerStrip(std::span<const AttentionSegment> segments, uint32_t kv_head_count,
                      uint32_t group, uint32_t strips_wanted) {
  for (uint32_t queries = kStripQueriesMax;; queries /= 2) {
    const uint32_t rows = std::max(1u, queries / group);
    uint64_t strip_count = 0;
    for (const AttentionSegment& segment : segments) {
      if (segment.row_count == 1) continue;
      strip_count += uint64_t{(segment.row_count + rows - 1) / rows} * kv_head_count;
    }
    if (strip_count >= strips_wanted || queries <= kStripQueriesMin) return rows;
  }
}

void AddChunk(const AttentionSegment& segment, uint32_t segment_index, uint32_t rows_per_strip,
              uint32_t kv_head_count, uint32_t group, std::vector<AttentionStripPlan>& strips) {
  const uint32_t parts = (segment.row_count + rows_per_strip - 1) / rows_per_strip;
  for (uint64_t part = 0; part < parts; ++part) {
    const auto row_begin = static_cast<uint32_t>(segment.row_count * part / parts);
    const auto row_end = static_cast<uint32_t>(segment.row_count * (part + 1) / parts);
    AttentionStripPlan strip = MakeStrip(segment, segment_index, row_begin, row_end, group);
    for (uint32_t head = 0; head < kv_head_count; ++head) {
      strip.kv_head_begin = head;
      strips.push_back(strip);
    }
  }
}

void AddRow(const AttentionSegment& segment, uint32_t segment_index, uint32_t heads_per_strip,
            uint32_t kv_head_count, uint32_t group, std::vector<AttentionStripPlan>& strips) {
  AttentionStripPlan strip = MakeStrip(segment, segment_index, 0, 1, group);
  strip.kv_head_count = heads_per_strip;
  strip.cost *= heads_per_strip;
  for (uint32_t head = 0; head < kv_head_count; head += heads_per_strip) {
    strip.kv_head_begin = head;
    strips.push_back(strip);
  }
}

}  // namespace

void PlanAttention(std::span<const AttentionSegment> segments, uint32_t kv_head_count,
                   uint32_t group, uint32_t thread_count, AttentionPlan& plan) {
  plan.whole.clear();
  plan.split.clear();
  const uint32_t strips_wanted = thread_count == 1 ? 1 : kStripsPerThread * thread_count;
  const uint32_t rows_per_strip = RowsPerStrip(segments, kv_head_count, group, strips_wanted);
  uint64_t span_count = 0;
  for (const AttentionSegment& segment : segments) {
    span_count += SpanCount(segment.first_position + segment.row_count);
  }
  const bool enough = span_count >= strips_wanted || span_count % thread_count == 0;
  const uint32_t heads_per_strip = enough ? kv_head_count : 1;

  for (uint32_t i = 0; i < segments.size(); ++i) {
    if (segments[i].row_count == 1) {
      AddRow(segments[i], i, heads_per_strip, kv_head_count, group, plan.whole);
    } else {
      AddChunk(segments[i], i, rows_per_strip, kv_head_count, group, plan.whole);
    }
  }
  if (thread_count == 1) return;

  uint64_t cost = 0;
  for (const AttentionStripPlan& strip : plan.whole) cost += strip.cost;
  const auto is_large = [&](const AttentionStripPlan& strip) {
    return strip.span_count > 1 && strip.cost * strips_wanted > cost;
  };
  std::copy_if(plan.whole.begin(), plan.whole.end(), std::back_inserter(plan.split), is_large);
  std::erase_if(plan.whole, is_large);
  std::stable_sort(plan.whole.begin(), plan.whole.end(),
                   [](const auto& a, const auto& b) { return a.cost > b.cost; });
}

}  // namespace cairn
