// The cutting of attention into strips.
#include "kernels/cpu/attention_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace cairn {
namespace {

struct Shape {
  uint32_t kv_heads;
  uint32_t group;
  uint32_t threads;
};

AttentionPlan PlanOf(const std::vector<AttentionSegment>& segments, const Shape& shape) {
  AttentionPlan plan;
  PlanAttention(segments, shape.kv_heads, shape.group, shape.threads, plan);
  return plan;
}

// Each row is in exactly one strip with each KV head.
void CheckCover(const std::vector<AttentionSegment>& segments, const Shape& shape,
                const AttentionPlan& plan) {
  std::vector<std::vector<int>> counts;
  for (const AttentionSegment& segment : segments) {
    counts.emplace_back(segment.row_count * shape.kv_heads, 0);
  }
  for (const auto* strips : {&plan.whole, &plan.split}) {
    for (const AttentionStripPlan& strip : *strips) {
      const AttentionSegment& segment = segments[strip.segment];
      ASSERT_LE(strip.row_begin + strip.row_count, segment.row_count);
      ASSERT_LE(strip.kv_head_begin + strip.kv_head_count, shape.kv_heads);
      const uint32_t context = segment.first_position + strip.row_begin + strip.row_count;
      EXPECT_EQ(strip.span_count, (context + kAttentionSpan - 1) / kAttentionSpan);
      for (uint32_t row = 0; row < strip.row_count; ++row) {
        for (uint32_t head = 0; head < strip.kv_head_count; ++head) {
          ++counts[strip.segment]
                  [(strip.row_begin + row) * shape.kv_heads + strip.kv_head_begin + head];
        }
      }
    }
  }
  for (const auto& count : counts) EXPECT_THAT(count, testing::Each(1));
}

TEST(AttentionPlan, CoversEveryQueryOnce) {
  Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    const Shape shape{static_cast<uint32_t>(1 + rng.Below(9)),
                      static_cast<uint32_t>(1 + rng.Below(300)),
                      static_cast<uint32_t>(1 + rng.Below(17))};
    std::vector<AttentionSegment> segments;
    for (uint64_t left = 1 + rng.Below(9); left > 0; --left) {
      segments.push_back({0, static_cast<uint32_t>(rng.Chance(0.5) ? 1 : 1 + rng.Below(600)),
                          static_cast<uint32_t>(rng.Below(3000)), nullptr});
    }
    const AttentionPlan plan = PlanOf(segments, shape);
    CheckCover(segments, shape, plan);
    EXPECT_LE(plan.split.size(), 4 * shape.threads);
    EXPECT_TRUE(std::is_sorted(plan.whole.begin(), plan.whole.end(),
                               [](const auto& a, const auto& b) { return a.cost > b.cost; }) ||
                shape.threads == 1);
    for (const AttentionStripPlan& strip : plan.whole) {
      if (segments[strip.segment].row_count > 1) {
        EXPECT_LE(strip.row_count * shape.group, std::max(kStripQueriesMax, shape.group));
      }
    }
  }
}

TEST(AttentionPlan, OneThreadSplitsNothing) {
  const AttentionPlan plan = PlanOf({{0, 1, 100000, nullptr}}, {3, 3, 1});
  EXPECT_TRUE(plan.split.empty());
  ASSERT_EQ(plan.whole.size(), 1u);
  EXPECT_EQ(plan.whole[0].kv_head_count, 3u);
}

TEST(AttentionPlan, LoneLongRowIsSplitWithItsHeadsTogether) {
  const AttentionPlan plan = PlanOf({{0, 1, 8000, nullptr}}, {3, 3, 2});
  EXPECT_TRUE(plan.whole.empty());
  ASSERT_EQ(plan.split.size(), 1u);
  EXPECT_EQ(plan.split[0].kv_head_count, 3u);
  EXPECT_EQ(plan.split[0].span_count, 32u);
}

TEST(AttentionPlan, LoneShortRowIsCutByHeads) {
  EXPECT_EQ(PlanOf({{0, 1, 100, nullptr}}, {3, 3, 2}).whole.size(), 3u);
}

TEST(AttentionPlan, ManyRowsAreNotSplit) {
  std::vector<AttentionSegment> segments;
  for (uint32_t i = 0; i < 64; ++i) segments.push_back({i, 1, 1000, nullptr});
  const AttentionPlan plan = PlanOf(segments, {3, 3, 2});
  EXPECT_TRUE(plan.split.empty());
  EXPECT_EQ(plan.whole.size(), 64u);
}

TEST(AttentionPlan, SmallChunkStillFeedsAllThreads) {
  const AttentionPlan plan = PlanOf({{0, 128, 4096, nullptr}}, {3, 3, 4});
  EXPECT_GE(plan.whole.size() + plan.split.size(), 16u);
}

}  // namespace
}  // namespace cairn
