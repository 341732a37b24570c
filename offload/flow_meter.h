// What one block takes through a channel, others before and behind it: the time from one end to the
// next, or from the order to the end where nothing was under way.
// Threads: one.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "offload/prediction_histogram.h"
#include "offload/robust_rate.h"

namespace cairn {

// What loads through a channel take.
struct LoadFlow {
  double block_s = 0;           // seconds; 0: nothing has been seen yet
  uint32_t under_way = 0;       // blocks that wait or are being loaded
  Clock::Monotonic last_begin;  // when the latest was ordered
};

class FlowMeter {
 public:
  void Begin(Clock::Monotonic now) {
    if (under_way_++ == 0) mark_ = now;
    last_begin_ = now;
  }
  // One that was ordered is not to happen.
  void Cancel() { --under_way_; }

  // One is over, and took so long by itself; 0: not known.
  void End(double seconds) {
    --under_way_;
    Note(seconds, 1);
  }

  // Somebody looks: `ended` orders are over since the last time, all of them well or not, the last
  // of them at `last_end`.
  void Look(uint32_t ended, bool well, Clock::Monotonic last_end, Clock::Monotonic now) {
    looked_ = now;
    if (ended == 0) return;
    under_way_ -= std::min(ended, under_way_);
    const std::chrono::duration<double> each = (last_end - mark_) / static_cast<double>(ended);
    mark_ = std::max(mark_, last_end);
    // They were measured together, so they do not say as much as each by itself.
    if (well) Note(each.count(), static_cast<uint32_t>(std::bit_width(ended)));
  }

  // While what is under way takes longer than it should, it counts as taking that long.
  LoadFlow flow() const {
    const std::chrono::duration<double> waited = looked_ - mark_;
    const double seen = block_s_ ? block_s_->value() : 0;
    return {under_way_ == 0 ? seen : std::max(seen, waited.count()), under_way_, last_begin_};
  }

  // What a block was to take, and took.
  const PredictionHistogram& predictions() const { return predictions_; }

 private:
  static constexpr double kSpreadAtFirst = 0.3;

  void Note(double seconds, uint32_t count) {
    if (seconds <= 0) return;
    for (uint32_t i = 0; i < count; ++i) {
      if (block_s_) {
        predictions_.Note(block_s_->value(), seconds);
      } else {
        block_s_.emplace(seconds, kSpreadAtFirst);
      }
      block_s_->Note(seconds);
    }
  }

  uint32_t under_way_ = 0;
  Clock::Monotonic mark_;  // when the latest order ended, or the first of these began
  Clock::Monotonic looked_;
  Clock::Monotonic last_begin_;
  std::optional<RobustRate> block_s_;
  PredictionHistogram predictions_;
};

}  // namespace cairn
