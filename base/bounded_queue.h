// A queue between threads with a bound: Push refuses when it is full, it never blocks and never
// grows past `capacity`. Any number of producers; Pop and Drain from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace cairn {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { CHECK(capacity > 0); }

  // False when the queue is full or closed; `item` is then lost.
  [[nodiscard]] bool Push(T item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
    return true;
  }

  // Everything that is queued, in order; waits up to `patience` for a first item. Empty after the
  // wait, a Wake, or a Close.
  std::vector<T> Drain(std::chrono::nanoseconds patience) {
    std::unique_lock lock(mutex_);
    // A wait of zero would still go to the kernel, and at times to sleep.
    if (patience > std::chrono::nanoseconds(0)) {
      changed_.wait_for(lock, patience, [&] { return !items_.empty() || woken_ || closed_; });
    }
    woken_ = false;
    std::vector<T> drained(std::make_move_iterator(items_.begin()),
                           std::make_move_iterator(items_.end()));
    items_.clear();
    return drained;
  }

  // Ends a Drain that waits, without an item.
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

  // Later pushes are refused; what is queued can still be drained.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool woken_ = false;
  bool closed_ = false;
};

}  // namespace cairn
