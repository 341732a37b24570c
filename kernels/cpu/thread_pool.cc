#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/check.h"

namespace cairn {
namespace {

// About 50 microseconds: a pause takes 40 to 140 cycles on the processors of the last ten years.
constexpr uint32_t kSpinCount = 2000;

uint32_t UsableProcessorCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Sleeps while word == expected; may wake for no reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

ThreadPool::ThreadPool(uint32_t thread_count)
    : thread_count_(thread_count),
      spin_count_(thread_count <= UsableProcessorCount() ? kSpinCount : 0) {
  CHECK(thread_count >= 1 && thread_count <= kThreadCountMax);
  workers_.reserve(thread_count - 1);
  for (uint32_t thread = 1; thread < thread_count; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  FutexWakeAll(epoch_);
  for (std::thread& worker : workers_) worker.join();
}

// The sleep protocol, in both directions: the sleeper announces itself and then lets the kernel
// compare the word; the waker changes the word and then looks for an announcement. All four are
// sequentially consistent, so either the waker sees the announcement or the comparison fails.

void ThreadPool::Dispatch(Function function, void* context) {
  CHECK(busy_count_.load(std::memory_order_relaxed) == 0);  // runs do not nest
  function_ = function;
  context_ = context;
  busy_count_.store(thread_count_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1);
  if (sleeper_count_.load() > 0) FutexWakeAll(epoch_);
  function(context, 0);
  AwaitWorkers();
}

void ThreadPool::AwaitWorkers() {
  for (uint32_t spins = 0; spins < spin_count_; ++spins) {
    if (busy_count_.load(std::memory_order_acquire) == 0) return;
    Pause();
  }
  caller_sleeps_.store(true);
  for (uint32_t busy; (busy = busy_count_.load()) != 0;) FutexWait(busy_count_, busy);
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void ThreadPool::WorkerLoop(uint32_t thread) {
  uint32_t seen = 0;
  while (true) {
    uint32_t spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (spins++ < spin_count_) {
        Pause();
        continue;
      }
      sleeper_count_.fetch_add(1);
      FutexWait(epoch_, seen);
      sleeper_count_.fetch_sub(1);
    }
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    function_(context_, thread);
    if (busy_count_.fetch_sub(1) == 1 && caller_sleeps_.load()) FutexWakeAll(busy_count_);
  }
}

}  // namespace cairn
