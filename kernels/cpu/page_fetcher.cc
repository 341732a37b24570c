#include "kernels/cpu/page_fetcher.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>

#include "kernels/cpu/host_memory.h"

namespace cairn {

PageFetcher::PageFetcher(std::span<std::byte> bytes) : bytes_(bytes), thread_([this] { Run(); }) {}

PageFetcher::~PageFetcher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PageFetcher::FetchTo(size_t size_bytes) {
  {
    std::lock_guard lock(mutex_);
    wanted_bytes_ = std::max(wanted_bytes_, std::min(size_bytes, bytes_.size()));
  }
  changed_.notify_one();
}

void PageFetcher::Run() {
  // Only where a processor has nothing else to do: computing goes first.
  const sched_param no_priority = {};
  (void)sched_setscheduler(0, SCHED_IDLE, &no_priority);
  size_t fetched_bytes = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return fetched_bytes < wanted_bytes_ || stopping_; });
    if (stopping_) return;
    lock.unlock();
    // One huge page at a time, so that the end does not wait long. A kernel that cannot do it
    // (before Linux 5.14), or has no memory left, leaves it to the first touch.
    const size_t step = std::min(kHugePageBytes, bytes_.size() - fetched_bytes);
    (void)madvise(bytes_.data() + fetched_bytes, step, MADV_POPULATE_WRITE);
    fetched_bytes += step;
    lock.lock();
  }
}

}  // namespace cairn
