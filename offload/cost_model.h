// What computing and loading cost on this machine: calibrated once, then learned from every step
// and every transfer. Estimates move slowly, ignore outliers, notice a lasting change within a few
// observations, and know how far off they usually are (robust_rate.h).
//
// Threads: the engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/pass_fit.h"
#include "offload/restore_problem.h"
#include "offload/robust_rate.h"

namespace cairn {

// Passes. Observations are kept by kind, rows and positions in powers of two, as ratios to what
// the calibration says; every kRefitPasses of them the constants are fitted anew.
class PassCostModel {
 public:
  static constexpr uint32_t kRefitPasses = 32;

  explicit PassCostModel(const PassFit& calibrated);

  const PassCosts& costs() const { return costs_; }
  // Mean deviation of passes from their prediction, as a share.
  double uncertainty() const { return ratio_.spread(); }
  double Predict(uint32_t rows, double position_sum) const {
    return costs_.FixedSeconds(rows) + costs_.token_position_s * position_sum;
  }
  void Note(const PassSample& sample);

 private:
  struct Kind {
    PassSample latest;
    RobustRate ratio;  // to the calibration's prediction
  };

  void Refit();
  double Calibrated(const PassSample& sample) const {
    return calibrated_.FixedSeconds(sample.rows) +
           calibrated_.token_position_s * sample.position_sum;
  }

  const PassCosts calibrated_;
  PassCosts costs_;
  RobustRate ratio_;  // of passes to costs_
  std::map<std::pair<int, int>, Kind> kinds_;
  uint32_t passes_since_fit_ = 0;
};

struct ChannelCosts {
  double latency_s = 0;
  double copy_s = 0;       // per block, whatever its size
  double bytes_per_s = 0;  // > 0
};

// One channel. What is learned is how much slower or faster than calibrated all of it is.
class ChannelCostModel {
 public:
  ChannelCostModel(const ChannelCosts& calibrated, uint64_t block_bytes, double spread = 0);

  double latency_s() const { return calibrated_.latency_s * slowdown_.value(); }
  double block_s() const { return block_s_ * slowdown_.value(); }
  double bytes_per_s() const { return calibrated_.bytes_per_s / slowdown_.value(); }
  // Mean deviation of transfers from their prediction, as a share.
  double uncertainty() const { return slowdown_.spread(); }
  // How often the channel was found to be different for good.
  uint64_t change_count() const { return slowdown_.change_count(); }

  // So many blocks took so long; `began_idle`: nothing was under way when the first was ordered, so
  // that its latency is in it.
  void Note(uint32_t block_count, double seconds, bool began_idle);

  RestoreChannel AsChannel() const { return {.latency_s = latency_s(), .block_s = block_s()}; }

 private:
  const ChannelCosts calibrated_;
  const double block_s_;
  RobustRate slowdown_;
};

// Latency and time of a block from a measurement of one block and one of several; per-copy cost
// and bandwidth are not told apart, so all of it is bandwidth.
ChannelCosts FitChannel(double one_s, uint32_t block_count, double all_s, uint64_t block_bytes);

}  // namespace cairn
