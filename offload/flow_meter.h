// What one block takes through a channel, as seen by who gives orders and now and then looks what
// has ended: the time between two ends while more were waiting. A look may come late, so that a
// time that ends with nothing left is only an upper bound. Threads: one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace cairn {

// What loads through a channel take.
struct LoadFlow {
  std::chrono::nanoseconds interval{0};  // of a block; zero: nothing has been seen yet
  uint32_t under_way = 0;                // blocks that wait or are being loaded
  Clock::Monotonic last_begin;           // when the latest was ordered
};

class FlowMeter {
 public:
  void Begin(Clock::Monotonic now) {
    if (under_way_++ == 0) mark_ = now;
    last_begin_ = now;
  }
  // One that was ordered is not to happen.
  void Cancel() { --under_way_; }

  // So many orders were found to have ended since the last look, `done` of them well.
  void Look(uint32_t ended, uint32_t done, Clock::Monotonic now) {
    under_way_ -= std::min(ended, under_way_);
    looked_ = now;
    if (ended == 0) return;
    const std::chrono::nanoseconds each = (now - mark_) / ended;
    mark_ = now;
    if (done < ended) return;
    const bool is_bound = under_way_ == 0 && interval_.count() > 0 && each > interval_;
    if (is_bound) return;
    for (uint32_t i = 0; i < std::min(done, kSamplesMax); ++i) {
      interval_ = interval_.count() == 0 ? each : (3 * interval_ + each) / 4;
    }
  }

  // While what is under way takes longer than it should, the interval is that.
  LoadFlow flow() const {
    const auto waited = under_way_ == 0 ? std::chrono::nanoseconds(0) : looked_ - mark_;
    return {std::max<std::chrono::nanoseconds>(interval_, waited), under_way_, last_begin_};
  }

 private:
  static constexpr uint32_t kSamplesMax = 8;  // one look says no more than so many

  uint32_t under_way_ = 0;
  Clock::Monotonic mark_;  // when the latest order ended, or the first of these began
  Clock::Monotonic looked_;
  Clock::Monotonic last_begin_;
  std::chrono::nanoseconds interval_{0};
};

}  // namespace cairn
