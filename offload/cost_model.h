// What computing costs on this machine: calibrated once, then learned from every step. Estimates
// move slowly, ignore outliers, notice a lasting change within a few observations, and know how far
// off they usually are (robust_rate.h). What loads cost is measured by flow_meter.h.
//
// Threads: the engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "offload/pass_fit.h"
#include "offload/restore_problem.h"
#include "offload/robust_rate.h"

namespace cairn {

// Passes. Observations are kept by kind, rows and positions in powers of two, as ratios to what
// the calibration says; the costs are fitted anew whenever there are twice as many of them as the
// last time, every kRefitPasses, and when what is known of a kind has moved.
class PassCostModel {
 public:
  static constexpr uint32_t kFirstFitPasses = 4;
  static constexpr uint32_t kRefitPasses = 32;
  static constexpr uint32_t kMovedFitPasses = 4;  // at least, between fits

  explicit PassCostModel(const PassFit& calibrated);

  const PassCosts& costs() const { return costs_; }
  // Mean deviation of passes from their prediction, as a share.
  double uncertainty() const { return ratio_.spread(); }
  double Predict(uint32_t rows, double position_sum) const {
    return costs_.Seconds(rows, position_sum);
  }
  void Note(const PassSample& sample);

 private:
  struct Kind {
    PassSample latest;
    RobustRate ratio;         // to the calibration's prediction
    double fitted_ratio = 1;  // at the last fit
    uint32_t weight = 1;
  };

  void Refit();
  double Calibrated(const PassSample& sample) const {
    return calibrated_.Seconds(sample.rows, sample.position_sum);
  }

  const PassCosts calibrated_;
  PassCosts costs_;
  RobustRate ratio_;  // of passes to costs_
  std::map<std::pair<int, int>, Kind> kinds_;
  double common_ratio_ = 1;  // of kinds that were not seen
  uint32_t passes_ = 0;
  uint32_t last_fit_ = 0;                // passes_ then
  uint32_t next_fit_ = kFirstFitPasses;  // when passes_ is this
};

}  // namespace cairn
