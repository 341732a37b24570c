// Passes over one row of logits or weights, one value a vocabulary id: the part of sampling that
// takes time. Loops go in groups of kRowLanes with a fixed count, which the compiler turns into
// vector code without being allowed to reorder anything, so the results are the same bits on every
// machine. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cairn {

inline constexpr size_t kRowLanes = 16;
// Ids whose weights share one sum, so that a draw looks at sums first. A multiple of kRowLanes.
inline constexpr size_t kRowBlock = 1024;

// exp(x) for x <= 0, with a relative error below 3e-7; 0 below -87 and for NaN.
float ExpNotPositive(float x);

// weights[id] = ExpNotPositive((logits[id] - highest) / temperature), then zeros up to a whole
// block; totals[b] = the sum of block b.
void WeighRow(std::span<const float> logits, float highest, float temperature,
              std::vector<float>& weights, std::vector<double>& totals);

// The lowest id with the highest value, and the value. NaN is passed over; (0, -inf) when nothing
// is above -inf.
std::pair<uint32_t, float> HighestInRow(std::span<const float> values);

// Whether one of the kRowLanes values is above `threshold`.
inline bool AnyAbove(const float* values, float threshold) {
  int above = 0;
  for (size_t i = 0; i < kRowLanes; ++i) above |= values[i] > threshold ? 1 : 0;
  return above != 0;
}

}  // namespace cairn
