#include "service/end_watch.h"

#include <utility>

namespace cairn {
namespace {

std::string Seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

EndWatch::EndWatch(const EndLimits& limits, std::function<DiskWait()> disk,
                   std::function<void(const std::string& why)> give_up)
    : limits_(limits),
      grace_ends_(std::chrono::steady_clock::now() + limits.grace),
      give_up_(std::move(give_up)),
      disk_(std::move(disk)) {
  thread_ = std::thread([this] { Run(); });
}

EndWatch::~EndWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EndWatch::SessionsAreWritten() {
  const std::lock_guard lock(mutex_);
  disk_ = nullptr;
}

void EndWatch::Run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, limits_.look, [this] { return is_over_; })) {
    if (const auto why = WhyNow(std::chrono::steady_clock::now())) return give_up_(*why);
  }
}

// Why it is given up now, if it is.
std::optional<std::string> EndWatch::WhyNow(std::chrono::steady_clock::time_point now) const {
  if (now < grace_ends_) return std::nullopt;
  const DiskWait wait = disk_ ? disk_() : DiskWait();
  if (wait.silence >= limits_.patience) {
    return "the disk has not answered for " + Seconds(wait.silence) +
           "; not written: changes of at least " + std::to_string(wait.session_count) +
           " sessions, which nobody was told of";
  }
  if (now < grace_ends_ + limits_.max) return std::nullopt;
  return std::string("the end takes longer than ") + Seconds(limits_.max) +
         "; not written: " + (disk_ ? "what nobody was told of sessions, and " : "") +
         "KV blocks that were on their way to the disk";
}

}  // namespace cairn
