// The constants of a pass (PassCosts) out of passes that were measured.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "offload/restore_problem.h"

namespace cairn {

struct PassSample {
  uint32_t rows = 0;        // >= 1
  double position_sum = 0;  // of the rows
  double seconds = 0;       // > 0
  double weight = 1;        // > 0, beside others
};

// The sum of the positions first .. first + rows - 1.
constexpr double PositionSum(double first, double rows) {
  return rows * first + rows * (rows - 1) / 2;
}

struct PassFit {
  PassCosts costs;
  double spread = 0;  // mean deviation of the samples from it, as a share
};

// Least squares of relative errors, outliers weighted down (Huber), no constant below zero. The
// number of rows up to which a pass costs the same is tried at, and between, those measured. What
// this leaves is put into the factors.
// kInvalidArgument for fewer than two samples, or one that is no measurement.
Result<PassFit> FitPasses(std::span<const PassSample> samples);

// What to measure, most telling first: a fit of any beginning of two or more is a fit, and the
// whole of it takes about as long as computing 1,000 rows. Rows lie at first_position and after.
struct CalibrationPoint {
  uint32_t rows = 0;
  uint32_t first_position = 0;
};
std::vector<CalibrationPoint> CalibrationPoints(uint32_t rows_max, uint32_t positions_max);

}  // namespace cairn
