// Copies of blocks between the device's memory and the host's: on one stream, and perhaps at most
// so many bytes a second. Under a limit, what may not move yet waits here and is not on the stream,
// which is the back-pressure: it can still be cancelled, and its slots stay with who ordered it.
//
// To the device goes first, since somebody may be waiting for it; but a copy to the host that has
// waited for kPatience is not put off any longer. Each direction keeps its order.
// Threads: the engine thread only. Advance is to be called while anything waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/device.h"

namespace cairn {

// One copy that was ordered.
class QueuedCopy {
 public:
  bool has_begun() const { return begun_; }
  bool IsOver() const { return begun_ && (ended_ == nullptr || ended_->Passed()); }
  // Of one that is over.
  Status Outcome() const { return ended_ == nullptr ? Status() : ended_->Wait(); }
  double seconds() const {  // that it took on the stream; 0: not known
    return began_ == nullptr || ended_ == nullptr ? 0 : ended_->SecondsSince(*began_);
  }

 private:
  friend class CopyQueue;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  size_t size_bytes_ = 0;
  EventRef after_;
  Clock::Monotonic ordered_;
  bool begun_ = false;
  EventRef began_;
  EventRef ended_;
};
using CopyRef = std::shared_ptr<QueuedCopy>;

class CopyQueue {
 public:
  static constexpr std::chrono::milliseconds kPatience{20};
  enum class Way : uint8_t { kToDevice, kToHost };

  // 0: no limit. Otherwise, while copies wait, they come due one after the other at this rate, and
  // each look begins what is due: over any time T between two looks at most bytes_per_second * T
  // and one copy.
  CopyQueue(std::unique_ptr<Stream> stream, uint64_t bytes_per_second, const Clock& clock)
      : stream_(std::move(stream)), bytes_per_second_(bytes_per_second), clock_(clock) {}

  // `after` (may be null) comes before it. The memory stays until the copy is over or cancelled.
  CopyRef Add(Way way, std::byte* to, const std::byte* from, size_t size_bytes,
              const EventRef& after = nullptr);
  // Begins what may begin by now.
  void Advance();
  // True: it has not begun, and never will.
  bool Cancel(const CopyRef& copy);

  uint64_t begun_count() const { return begun_count_; }  // since the start
  bool has_waiting() const { return !to_device_.empty() || !to_host_.empty(); }
  uint64_t bytes_per_second() const { return bytes_per_second_; }
  // What so many bytes take at least under the limit; 0 without.
  double LimitedSeconds(size_t size_bytes) const;

  // Copies now, and waits for it: for checks, past the queue and the limit.
  Status CopyNow(std::byte* to, const std::byte* from, size_t size_bytes, const EventRef& after);

 private:
  void Begin(QueuedCopy& copy);

  std::unique_ptr<Stream> stream_;
  const uint64_t bytes_per_second_;
  const Clock& clock_;
  Clock::Monotonic due_;  // when what has begun is paid for
  uint64_t begun_count_ = 0;
  std::deque<CopyRef> to_device_;
  std::deque<CopyRef> to_host_;
};

}  // namespace cairn
