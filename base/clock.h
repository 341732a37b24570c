// Time comes in through the constructor, so that a test can own it.
#pragma once

#include <chrono>
#include <thread>

namespace cairn {

class Clock {
 public:
  using Monotonic = std::chrono::steady_clock::time_point;
  using Wall = std::chrono::system_clock::time_point;
  virtual ~Clock() = default;
  virtual Monotonic Now() const = 0;  // for durations, deadlines and recency
  virtual Wall WallNow() const = 0;   // for what users read: create_time, expire_time
  virtual void SleepUntil(Monotonic time) const = 0;  // blocks the calling thread
};

class SystemClock final : public Clock {
 public:
  Monotonic Now() const override { return std::chrono::steady_clock::now(); }
  Wall WallNow() const override { return std::chrono::system_clock::now(); }
  void SleepUntil(Monotonic time) const override { std::this_thread::sleep_until(time); }
};

}  // namespace cairn
