// A stream of copies that take as long as their bytes say, by a clock that the test moves; who
// waits for one moves it too. The bytes are there at once. Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/device.h"
#include "tests/fakes/fake_clock.h"

namespace cairn {

class TimedCopyStream final : public Stream {
 public:
  TimedCopyStream(double byte_s, FakeClock& clock) : byte_s_(byte_s), clock_(clock) {}

  EventRef Record() override {
    return std::make_shared<Ended>(std::max(busy_until_, clock_.Now()), clock_);
  }
  void Wait(const EventRef& /*event*/) override {}
  void Copy(void* destination, const void* source, size_t size_bytes) override {
    std::memcpy(destination, source, size_bytes);
    const double seconds = byte_s_ * static_cast<double>(size_bytes);
    busy_until_ =
        std::max(busy_until_, clock_.Now()) + std::chrono::nanoseconds(std::llround(seconds * 1e9));
  }
  void Clear(void* destination, size_t size_bytes) override {
    std::memset(destination, 0, size_bytes);
  }
  Status Synchronize() override { return Record()->Wait(); }

 private:
  class Ended final : public Event {
   public:
    Ended(Clock::Monotonic end, FakeClock& clock) : end_(end), clock_(clock) {}
    bool Passed() const override { return clock_.Now() >= end_; }
    Status Wait() override {
      if (!Passed()) clock_.Advance(end_ - clock_.Now());
      return Status();
    }
    double SecondsSince(const Event& earlier) const override {
      return std::chrono::duration<double>(end_ - static_cast<const Ended&>(earlier).end_).count();
    }

   private:
    const Clock::Monotonic end_;
    FakeClock& clock_;
  };

  const double byte_s_;
  FakeClock& clock_;
  Clock::Monotonic busy_until_;
};

}  // namespace cairn
