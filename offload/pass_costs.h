// What a pass of the model takes: `pass_s + max(sweep_s, rows * token_s)`, and `token_position_s`
// for each position that a token attends to; each times what the machine makes of so many rows. The
// rows are the pass's tokens and those of running streams, which every pass carries along.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"

namespace cairn {

// How far off a cost is in a pass of so many rows, as kernels do better at some numbers of rows
// than at others. Straight between knots, level before the first and after the last.
class RowFactors {
 public:
  static constexpr uint32_t kKnotsMax = 16;
  static constexpr double kFactorMin = 0.25, kFactorMax = 4;

  struct Knot {
    double rows = 0;
    double factor = 1;
    friend bool operator==(const Knot&, const Knot&) = default;
  };

  // `rows` is above those of all others, of which there are fewer than kKnotsMax.
  void Add(double rows, double factor) {
    CHECK(count_ < kKnotsMax && (count_ == 0 || knots_[count_ - 1].rows < rows));
    knots_[count_++] = {rows, std::clamp(factor, kFactorMin, kFactorMax)};
  }
  double At(double rows) const {
    if (count_ == 0) return 1;
    uint32_t above = 0;
    while (above < count_ && knots_[above].rows < rows) ++above;
    if (above == 0) return knots_[0].factor;
    const Knot& low = knots_[above - 1];
    if (above == count_) return low.factor;
    const Knot& high = knots_[above];
    return low.factor + (high.factor - low.factor) * (rows - low.rows) / (high.rows - low.rows);
  }
  // The least one, at any rows.
  double least() const {
    double least = count_ == 0 ? 1 : kFactorMax;
    for (uint32_t i = 0; i < count_; ++i) least = std::min(least, knots_[i].factor);
    return least;
  }
  uint32_t count() const { return count_; }
  const Knot& operator[](uint32_t i) const { return knots_[i]; }

 private:
  std::array<Knot, kKnotsMax> knots_{};
  uint32_t count_ = 0;
};

struct PassCosts {
  double pass_s = 0;
  double sweep_s = 0;
  double token_s = 0;
  double token_position_s = 0;
  uint32_t decode_rows = 0;
  RowFactors fixed_factors;
  RowFactors position_factors;

  // What does not depend on where the tokens are.
  double FixedSeconds(uint64_t token_count) const {
    if (token_count == 0) return 0;
    const double rows = static_cast<double>(token_count + decode_rows);
    return (pass_s + std::max(sweep_s, rows * token_s)) * fixed_factors.At(rows);
  }
  // What their positions add to a pass of so many tokens.
  double PositionSeconds(uint64_t token_count, double position_sum) const {
    const double factor = position_factors.At(static_cast<double>(token_count));
    return token_position_s * factor * position_sum;
  }
  // However so many tokens are spread over so many passes, or more, it takes no less.
  double LeastSeconds(uint64_t token_count, uint32_t passes, double position_sum) const {
    const double rows = static_cast<double>(token_count + uint64_t{passes} * decode_rows);
    return (passes * pass_s + std::max(passes * sweep_s, rows * token_s)) * fixed_factors.least() +
           token_position_s * position_factors.least() * position_sum;
  }
  // Of a pass over tokens whose positions have that sum.
  double Seconds(uint64_t token_count, double position_sum) const {
    return FixedSeconds(token_count) + PositionSeconds(token_count, position_sum);
  }
};

}  // namespace cairn
