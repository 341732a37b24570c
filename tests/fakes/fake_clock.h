// A clock that stands still until the test moves it.
#pragma once

#include <chrono>

#include "base/clock.h"

namespace cairn {

class FakeClock final : public Clock {
 public:
  Monotonic Now() const override { return Monotonic(elapsed_); }
  Wall WallNow() const override {
    return Wall(std::chrono::duration_cast<Wall::duration>(kWallStart + elapsed_));
  }
  void Advance(std::chrono::nanoseconds step) { elapsed_ += step; }

 private:
  static constexpr std::chrono::seconds kWallStart{1'700'000'000};
  std::chrono::nanoseconds elapsed_{0};
};

}  // namespace cairn
