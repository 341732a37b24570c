// Whether a tier that may fail is to be used. After a few failures in a row it is left alone for a
// while; then one order goes as a probe, and its outcome decides between coming back and a pause
// twice as long. Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace cairn {

class TierHealth {
 public:
  static constexpr uint32_t kFailuresMax = 3;  // in a row
  static constexpr std::chrono::seconds kPauseMin{1};
  static constexpr std::chrono::seconds kPauseMax{60};

  explicit TierHealth(const Clock& clock) : clock_(clock) {}

  // Whether an order may be given now.
  bool is_up() const {
    return failure_count_ < kFailuresMax || (!is_probing_ && clock_.Now() >= paused_until_);
  }
  bool is_paused() const { return failure_count_ >= kFailuresMax; }

  // An order is given; it was allowed. True: it is the probe, whose end has to be told.
  bool OnOrder() {
    if (is_paused()) is_probing_ = true;
    return is_paused();
  }
  // The probe has ended and says nothing: another order may be it.
  void OnNoAnswer() { is_probing_ = false; }

  // True when the tier comes back with it.
  bool OnSuccess() {
    const bool was_paused = is_paused();
    failure_count_ = 0;
    is_probing_ = false;
    pause_ = kPauseMin;
    return was_paused;
  }

  // True when the tier goes with it, or stays away for longer.
  bool OnFailure() {
    if (is_paused() && !is_probing_) return false;  // an order of before
    if (failure_count_ < kFailuresMax) ++failure_count_;
    if (!is_paused()) return false;
    if (is_probing_) pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, kPauseMax);
    is_probing_ = false;
    paused_until_ = clock_.Now() + pause_;
    return true;
  }

  std::chrono::nanoseconds pause() const { return pause_; }

 private:
  const Clock& clock_;
  uint32_t failure_count_ = 0;
  bool is_probing_ = false;
  std::chrono::nanoseconds pause_ = kPauseMin;
  Clock::Monotonic paused_until_;
};

}  // namespace cairn
