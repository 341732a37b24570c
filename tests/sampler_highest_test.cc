// Sampling from the highest logits of a row alone, ranked elsewhere, where the sampler says that
// they are enough.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "engine/sampler.h"
#include "kernels/cpu/top_logits.h"

namespace cairn {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

using Row = std::vector<float>;

SamplingParams With(float temperature, uint32_t top_k, float top_p, float min_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

// One whose values are anything, or few, or not even numbers.
Row UnusualRow(size_t size, Rng& rng) {
  Row row(size);
  for (float& logit : row) logit = static_cast<float>(16 * rng.Uniform() - 8);
  const uint64_t kind = rng.Below(3);
  if (kind == 0) return row;
  for (float& logit : row) logit = std::round(logit / 2);  // ties, and negative zeros
  if (kind == 1) return row;
  constexpr float kStrange[] = {kNan, kInfinity, -kInfinity, kLargest, -kLargest, -0.0f};
  for (float& logit : row) {
    if (rng.Chance(0.3)) logit = kStrange[rng.Below(std::size(kStrange))];
  }
  return row;
}

// Ranked elsewhere, the highest logits give the token that the whole row gives, bit for bit.
TEST(SamplerHighestTest, TheHighestLogitsAreEnoughWhereItSaysSo) {
  Rng rng(51);
  Sampler sampler;
  int drawn_count = 0;
  for (int round = 0; round < 60; ++round) {
    const Row row = UnusualRow(1 + rng.Below(300), rng);
    const auto size = static_cast<uint32_t>(row.size());
    for (const float temperature : {0.0f, 0.3f, 1.0f, 2.0f}) {
      for (const uint32_t top_k : {1u, 2u, 40u, 256u, size - 1, size}) {
        for (const float top_p : {1.0f, 0.9f, 0.3f, 1e-6f}) {
          for (const float min_p : {0.0f, 0.1f, 1.0f}) {
            const SamplingParams params = With(temperature, top_k, top_p, min_p);
            const uint32_t needed = HighestNeeded(params, size);
            if (needed == 0) continue;
            ASSERT_EQ(needed, temperature == 0 ? 1 : top_k);
            // More than are needed do no harm.
            const auto count = std::min(size, needed + static_cast<uint32_t>(rng.Below(3)));
            std::vector<RankedLogit> highest(count);
            SelectTopLogits({row.data(), 1, size, count, highest.data()});
            const uint64_t seed = rng.Next();
            const auto whole = sampler.Sample(row, params, seed, 5, nullptr);
            const auto few =
                sampler.Sample(RowLogits{.highest = highest}, params, seed, 5, nullptr);
            ASSERT_EQ(few.ok(), whole.ok());
            if (!whole.ok()) continue;
            ASSERT_EQ(few->id, whole->id) << temperature << " " << top_k << " " << top_p;
            drawn_count += temperature > 0;
          }
        }
      }
    }
  }
  EXPECT_GT(drawn_count, 5000);
}

TEST(SamplerHighestTest, SaysWhenItNeedsTheWholeRow) {
  constexpr uint32_t kSize = 1000;
  const SamplingParams enough = With(1, 40, 0.9f, 0.1f);
  EXPECT_EQ(HighestNeeded(enough, kSize), 40u);
  EXPECT_EQ(HighestNeeded(enough, 40), 0u);
  EXPECT_EQ(HighestNeeded(With(1, 0, 1, 0), kSize), 0u);
  EXPECT_EQ(HighestNeeded(With(0, 0, 1, 0), kSize), 1u);
  std::vector<SamplingParams> all(5, With(0, 0, 1, 0));
  all[0].logprobs = 0;
  all[1].logit_bias = {{3, 1.0f}};
  all[2].repetition_penalty = 1.1f;
  all[3].presence_penalty = 0.5f;
  all[4].frequency_penalty = 0.5f;
  for (const SamplingParams& params : all) EXPECT_EQ(HighestNeeded(params, kSize), 0u);
}

}  // namespace
}  // namespace cairn
