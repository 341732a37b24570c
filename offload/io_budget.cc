#include "offload/io_budget.h"

#include <algorithm>

#include "base/check.h"

namespace cairn {

void IoBudget::ReadOrdered() {
  std::lock_guard lock(mutex_);
  ++reads_;
}

void IoBudget::ReadEnded() {
  {
    std::lock_guard lock(mutex_);
    CHECK(reads_ > 0);
    if (--reads_ > 0) return;
  }
  changed_.notify_all();
}

void IoBudget::Wait(uint64_t bytes, bool polite) {
  std::unique_lock lock(mutex_);
  const Clock::time_point patient_until = Clock::now() + kWritePatience;
  Clock::time_point now;
  while (now = Clock::now(), !stopped_) {
    const bool yields = polite && reads_ > 0 && now < patient_until;
    if (!yields && now >= due_) break;
    changed_.wait_until(lock, yields ? patient_until : due_);
  }
  due_ = std::max(due_, now) + TimeOf(bytes);
}

void IoBudget::GiveBack(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    due_ -= TimeOf(bytes);
  }
  changed_.notify_all();
}

IoBudget::Clock::duration IoBudget::TimeOf(uint64_t bytes) const {
  if (bytes_per_second_ == 0) return Clock::duration(0);
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void IoBudget::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace cairn
