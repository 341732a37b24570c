// The passes over a row: accuracy of the exponential, and every length around lanes and blocks.
#include "engine/logits_row.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace cairn {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 1023, 1024, 1025, 1040, 2048, 2063, 5000};

std::vector<float> RandomRow(size_t size, Rng& rng) {
  std::vector<float> row(size);
  for (float& value : row) value = static_cast<float>(rng.Uniform() * 40 - 20);
  return row;
}

TEST(LogitsRow, ExponentialIsAccurate) {
  double worst = 0;
  for (double x = 0; x > -86.99; x -= 1.0 / 4099) {
    const auto argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    worst = std::max(worst, std::abs(ExpNotPositive(argument) - exact) / exact);
  }
  EXPECT_LT(worst, 3e-7);
}

TEST(LogitsRow, ExponentialAtTheEdges) {
  EXPECT_EQ(ExpNotPositive(0.0f), 1.0f);
  EXPECT_EQ(ExpNotPositive(-0.0f), 1.0f);
  EXPECT_EQ(ExpNotPositive(-87.0f), 0.0f);
  EXPECT_EQ(ExpNotPositive(-kInfinity), 0.0f);
  EXPECT_EQ(ExpNotPositive(kNan), 0.0f);
  EXPECT_GE(ExpNotPositive(std::nextafter(-87.0f, 0.0f)), std::numeric_limits<float>::min());
}

TEST(LogitsRow, ExponentialKeepsItsBits) {
  // The values themselves matter less than that no compiler or machine changes them.
  EXPECT_EQ(std::bit_cast<uint32_t>(ExpNotPositive(-1.0f)), 0x3ebc5ab2u);
  uint64_t mixed = 0;
  for (int i = 0; i < 5000; ++i) {
    mixed =
        MixBits(mixed ^ std::bit_cast<uint32_t>(ExpNotPositive(-0.0173f * static_cast<float>(i))));
  }
  EXPECT_EQ(mixed, 0x57f1f34265e8eef0u);
}

TEST(LogitsRow, VectorCodeGivesTheBitsOfTheScalar) {
  Rng rng(1);
  for (const size_t size : kSizes) {
    std::vector<float> row = RandomRow(size, rng);
    row[size / 2] = kNan;
    row[size / 3] = -kInfinity;
    std::vector<float> weights(7, 5.0f);  // leftovers of another row must not show
    std::vector<double> totals;
    WeighRow(row, 20, 0.7f, weights, totals);
    ASSERT_EQ(weights.size() % kRowBlock, 0u);
    for (size_t i = 0; i < size; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(weights[i]),
                std::bit_cast<uint32_t>(ExpNotPositive((row[i] - 20) / 0.7f)));
    }
    for (size_t i = size; i < weights.size(); ++i) EXPECT_EQ(weights[i], 0.0f);
    ASSERT_EQ(totals.size(), weights.size() / kRowBlock);
    for (size_t block = 0; block < totals.size(); ++block) {
      const float* begin = &weights[block * kRowBlock];
      EXPECT_NEAR(totals[block], std::accumulate(begin, begin + kRowBlock, 0.0),
                  1e-12 * (1 + totals[block]));
    }
  }
}

TEST(LogitsRow, HighestIsTheFirstOfEqualOnes) {
  Rng rng(2);
  for (const size_t size : kSizes) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> row = RandomRow(size, rng);
      const size_t first = rng.Below(size);
      row[first] = 100;
      for (size_t i = first; i < size; i += 1 + rng.Below(400)) row[i] = 100;
      if (first > 0) row[first - 1] = kNan;
      EXPECT_EQ(HighestInRow(row), std::make_pair(static_cast<uint32_t>(first), 100.0f));
    }
  }
  EXPECT_EQ(HighestInRow(std::vector<float>(3000, -kInfinity)), std::make_pair(0u, -kInfinity));
  EXPECT_EQ(HighestInRow(std::vector<float>(3000, kNan)), std::make_pair(0u, -kInfinity));
}

TEST(LogitsRow, AnyAboveIsStrict) {
  float values[kRowLanes] = {};
  for (size_t i = 0; i < kRowLanes; ++i) {
    EXPECT_FALSE(AnyAbove(values, 0));
    values[i] = 1;
    EXPECT_TRUE(AnyAbove(values, 0));
    EXPECT_FALSE(AnyAbove(values, 1));
    values[i] = kNan;
  }
}

}  // namespace
}  // namespace cairn
