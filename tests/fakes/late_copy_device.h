// The CPU's device, but with copy streams that copy late: when somebody asks whether an event has
// passed, and only if a seed says so. So a copy that is under way can be watched, and replayed.
// Threads: one at a time.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/rng.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/fakes/forwarding_device.h"

namespace cairn {

class LateCopyDevice final : public ForwardingDevice {
 public:
  LateCopyDevice(uint64_t memory_bytes, uint64_t seed)
      : LateCopyDevice(MakeCpuDevice({.backend = "cpu", .memory_bytes = memory_bytes}), seed) {}
  // `device` is the CPU's.
  LateCopyDevice(std::unique_ptr<Device> device, uint64_t seed)
      : ForwardingDevice(std::move(device)), seed_(seed) {}

  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    if (use == StreamUse::kCompute) return ForwardingDevice::NewStream(use);
    return std::unique_ptr<Stream>(std::make_unique<LateStream>(seed_ + stream_count_++));
  }

 private:
  // Work in order; an event is a place in it.
  struct Work {
    explicit Work(uint64_t seed) : rng(seed) {}
    std::deque<std::function<void()>> tasks;
    uint64_t done_count = 0;
    Rng rng;

    void Run(uint64_t count) {
      for (; done_count < count; ++done_count) {
        tasks.front()();
        tasks.pop_front();
      }
    }
  };

  class LateEvent final : public Event {
   public:
    LateEvent(std::shared_ptr<Work> work, uint64_t place) : work_(std::move(work)), place_(place) {}
    bool Passed() const override {
      if (work_->done_count < place_ && work_->rng.Chance(0.5)) work_->Run(place_);
      return work_->done_count >= place_;
    }
    Status Wait() override {
      work_->Run(place_);
      return Status();
    }
    // Every piece of work takes as long.
    double SecondsSince(const Event& earlier) const override {
      return 1e-4 * static_cast<double>(place_ - static_cast<const LateEvent&>(earlier).place_);
    }

   private:
    const std::shared_ptr<Work> work_;
    const uint64_t place_;
  };

  class LateStream final : public Stream {
   public:
    explicit LateStream(uint64_t seed) : work_(std::make_shared<Work>(seed)) {}
    ~LateStream() override { CHECK(Synchronize().ok()); }
    EventRef Record() override {
      return std::make_shared<LateEvent>(work_, work_->done_count + work_->tasks.size());
    }
    void Wait(const EventRef& event) override {
      if (event != nullptr) work_->tasks.push_back([event] { CHECK(event->Wait().ok()); });
    }
    void Copy(void* destination, const void* source, size_t size_bytes) override {
      work_->tasks.push_back([=] { std::memcpy(destination, source, size_bytes); });
    }
    void Clear(void* destination, size_t size_bytes) override {
      work_->tasks.push_back([=] { std::memset(destination, 0, size_bytes); });
    }
    Status Synchronize() override { return Record()->Wait(); }

   private:
    const std::shared_ptr<Work> work_;
  };

  const uint64_t seed_;
  uint64_t stream_count_ = 0;
};

}  // namespace cairn
