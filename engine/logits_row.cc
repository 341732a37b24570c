#include "engine/logits_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

namespace cairn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Lanes = std::array<float, kRowLanes>;

// Below this, exp is taken to be 0: soon its result would be subnormal.
constexpr float kLowestExponent = -87.0f;

// exp(x) for x in [kLowestExponent, 0], with a relative error below 3e-7. Range reduction
// x = n ln 2 + r, |r| <= (ln 2) / 2, then the Taylor polynomial of degree 7, whose remainder is
// below 2^-27. Without a branch, so that loops over it become vector code.
inline float ExpInRange(float x) {
  constexpr float kRoundingShift = 0x1.8p23f;  // adding it rounds a small float to an integer
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts: n times the first is exact for |n| < 2^9.
  constexpr float kLn2High = 0x1.62ep-1f;
  constexpr float kLn2Low = static_cast<float>(0.693147180559945309 - 0x1.62ep-1);
  const float shifted = x * kLog2E + kRoundingShift;
  const float n = shifted - kRoundingShift;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // n sits in the low bits of `shifted`; the shift drops the rest of them.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

// weights[i] = ExpNotPositive((logits[i] - highest) / temperature), one simple loop a step.
inline void WeighLanes(const float* __restrict logits, float highest, float temperature,
                       float* __restrict weights) {
  Lanes x;
  Lanes clamped;
  for (size_t i = 0; i < kRowLanes; ++i) x[i] = (logits[i] - highest) / temperature;
  for (size_t i = 0; i < kRowLanes; ++i) {
    clamped[i] = x[i] > kLowestExponent ? x[i] : kLowestExponent;
  }
  for (size_t i = 0; i < kRowLanes; ++i) weights[i] = ExpInRange(clamped[i]);
  for (size_t i = 0; i < kRowLanes; ++i) weights[i] = x[i] > kLowestExponent ? weights[i] : 0.0f;
}

float HighestOf(const float* values, size_t count) {
  Lanes highest;
  highest.fill(-kInfinity);
  size_t at = 0;
  for (; at + kRowLanes <= count; at += kRowLanes) {
    for (size_t i = 0; i < kRowLanes; ++i) {
      highest[i] = values[at + i] > highest[i] ? values[at + i] : highest[i];
    }
  }
  float best = -kInfinity;
  for (; at < count; ++at) best = values[at] > best ? values[at] : best;
  for (const float value : highest) best = value > best ? value : best;
  return best;
}

}  // namespace

float ExpNotPositive(float x) { return x > kLowestExponent ? ExpInRange(x) : 0.0f; }

void WeighRow(std::span<const float> logits, float highest, float temperature,
              std::vector<float>& weights, std::vector<double>& totals) {
  const size_t block_count = (logits.size() + kRowBlock - 1) / kRowBlock;
  weights.resize(block_count * kRowBlock);
  totals.resize(block_count);
  const size_t whole = logits.size() / kRowLanes * kRowLanes;
  for (size_t i = 0; i < whole; i += kRowLanes) {
    WeighLanes(&logits[i], highest, temperature, &weights[i]);
  }
  std::fill(weights.begin() + static_cast<ptrdiff_t>(whole), weights.end(), 0.0f);
  for (size_t i = whole; i < logits.size(); ++i) {
    weights[i] = ExpNotPositive((logits[i] - highest) / temperature);
  }
  for (size_t block = 0; block < block_count; ++block) {
    const float* const begin = &weights[block * kRowBlock];
    std::array<double, kRowLanes> sums = {};
    for (const float* lanes = begin; lanes != begin + kRowBlock; lanes += kRowLanes) {
      for (size_t i = 0; i < kRowLanes; ++i) sums[i] += lanes[i];
    }
    totals[block] = std::accumulate(sums.begin(), sums.end(), 0.0);
  }
}

std::pair<uint32_t, float> HighestInRow(std::span<const float> values) {
  float best = -kInfinity;
  size_t best_block = 0;
  for (size_t base = 0; base < values.size(); base += kRowBlock) {
    const float value = HighestOf(&values[base], std::min(kRowBlock, values.size() - base));
    if (value > best) best = value, best_block = base;
  }
  if (best == -kInfinity) return {0, best};
  const auto found =
      std::find(values.begin() + static_cast<ptrdiff_t>(best_block), values.end(), best);
  return {static_cast<uint32_t>(found - values.begin()), best};
}

}  // namespace cairn
