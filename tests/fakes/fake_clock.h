// A clock that stands still until the test moves it. Threads: any.
#pragma once

#include <atomic>
#include <chrono>

#include "base/clock.h"

namespace cairn {

class FakeClock final : public Clock {
 public:
  Monotonic Now() const override { return Monotonic(elapsed()); }
  Wall WallNow() const override {
    return Wall(std::chrono::duration_cast<Wall::duration>(
        kWallStart + elapsed() + std::chrono::nanoseconds(wall_jump_ns_)));
  }
  // Nobody else has to move it meanwhile.
  void SleepUntil(Monotonic time) const override {
    if (time > Now()) elapsed_ns_ += (time - Now()).count();
  }
  void Advance(std::chrono::nanoseconds step) { elapsed_ns_ += step.count(); }
  // Somebody sets the wall clock.
  void JumpWall(std::chrono::nanoseconds step) { wall_jump_ns_ += step.count(); }

 private:
  static constexpr std::chrono::seconds kWallStart{1'700'000'000};
  std::chrono::nanoseconds elapsed() const { return std::chrono::nanoseconds(elapsed_ns_); }
  mutable std::atomic<int64_t> elapsed_ns_{0};
  std::atomic<int64_t> wall_jump_ns_{0};
};

}  // namespace cairn
