// How far predictions of time were off: counts of predicted over actual, by upper bound.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace cairn {

class PredictionHistogram {
 public:
  // Of all buckets but the last; a ratio that is a bound belongs below it. "Within 10 %" are the
  // buckets between 0.9 and 1.1.
  static constexpr std::array<double, 12> kUpperBounds = {0.1,  0.25, 0.5,  0.8, 0.9, 0.95,
                                                          1.05, 1.1,  1.25, 2,   4,   10};

  // A prediction is compared only when both are positive numbers.
  void Note(double predicted_s, double actual_s) {
    const double ratio = predicted_s / actual_s;
    if (!(ratio > 0) || !std::isfinite(ratio)) return;
    const auto bound = std::lower_bound(kUpperBounds.begin(), kUpperBounds.end(), ratio);
    ++counts_[static_cast<size_t>(bound - kUpperBounds.begin())];
  }

  const std::array<int64_t, kUpperBounds.size() + 1>& counts() const { return counts_; }

 private:
  std::array<int64_t, kUpperBounds.size() + 1> counts_{};
};

}  // namespace cairn
