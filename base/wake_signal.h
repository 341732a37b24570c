// How work that ends on some thread wakes the one that waits for it, though each is made without
// knowing the other. Threads: any.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

namespace cairn {

class WakeSignal {
 public:
  // From now on Ring calls `wake`, until it is replaced; null: nobody. Not while Ring runs: after
  // Connect(nullptr) what `wake` used may go.
  void Connect(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }
  void Ring() const {
    const std::lock_guard lock(mutex_);
    if (wake_) wake_();
  }

 private:
  mutable std::mutex mutex_;
  std::function<void()> wake_;
};

}  // namespace cairn
