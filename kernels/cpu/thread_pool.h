// The compute pool: `thread_count` threads of which the caller is one (index 0). A run hands the
// same function to every thread and returns when all have finished with it.
//
// Between runs a worker spins for a few tens of microseconds, because the operations of a forward
// pass follow one another that closely, and then sleeps on a futex; so does the caller while it
// waits for the last worker. Nothing yields in a loop: a descheduled neighbour gets the core. With
// more threads than processors nobody spins.
//
// Threads: Run, ForEach and ForRanges belong to one thread at a time and do not nest. What the
// caller wrote before a run is visible in it, and what it wrote is visible after it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace cairn {

inline constexpr uint32_t kThreadCountMax = 256;

class ThreadPool {
 public:
  explicit ThreadPool(uint32_t thread_count);  // 1..kThreadCountMax
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t thread_count() const { return thread_count_; }

  // f(thread_index) once on every thread.
  template <class F>
  void Run(F&& f) {
    if (thread_count_ == 1) return f(uint32_t{0});
    Dispatch([](void* context,
                uint32_t thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); },
             const_cast<void*>(static_cast<const void*>(&f)));
  }

  // f(index) for every index below count; a thread that is free takes the next one.
  template <class F>
  void ForEach(size_t count, F&& f) {
    if (count <= 1 || thread_count_ == 1) {
      for (size_t index = 0; index < count; ++index) f(index);
      return;
    }
    std::atomic<size_t> next{0};
    Run([&](uint32_t) {
      for (size_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(index);
    });
  }

  // f(begin, end) on one contiguous part of [0, count) a thread. Parts hold at least `part_min`
  // items, so a small count stays on the calling thread and wakes nobody.
  template <class F>
  void ForRanges(size_t count, size_t part_min, F&& f) {
    const size_t parts = std::min<size_t>(thread_count_, count / std::max<size_t>(part_min, 1));
    if (parts <= 1) {
      if (count > 0) f(size_t{0}, count);
      return;
    }
    Run([&](uint32_t thread) {
      if (thread < parts) f(count * thread / parts, count * (thread + 1) / parts);
    });
  }

 private:
  using Function = void (*)(void* context, uint32_t thread);

  void Dispatch(Function function, void* context);
  void WorkerLoop(uint32_t thread);
  void AwaitWorkers();

  const uint32_t thread_count_;
  const uint32_t spin_count_;  // pauses before a sleep

  // The run in progress; written by the caller before it advances epoch_.
  Function function_ = nullptr;
  void* context_ = nullptr;

  alignas(64) std::atomic<uint32_t> epoch_{0};  // runs started; workers sleep on it
  std::atomic<uint32_t> sleeper_count_{0};      // workers asleep, or about to be
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> busy_count_{
      0};  // workers not yet done; the caller sleeps on it
  std::atomic<bool> caller_sleeps_{false};

  std::vector<std::thread> workers_;
};

}  // namespace cairn
