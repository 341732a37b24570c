// How fast the disk tier may go and who goes first: a token bucket over the bytes of reads and
// writes, in which reads are served before writes. What has to wait waits on its own thread, which
// is the back-pressure: nothing is taken from a queue before its bytes may move.
//
// A read is ordered when somebody may be waiting for it; writes are nobody's concern. So a write
// lets ordered reads go first, but not for longer than kWritePatience, or constant reads would
// stop all writing.
//
// Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace cairn {

class IoBudget {
 public:
  static constexpr std::chrono::milliseconds kWritePatience{20};

  // Over any time T at most bytes_per_second * T and one operation are let through; 0: no limit.
  explicit IoBudget(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Every read that is ordered ends, also when it is cancelled.
  void ReadOrdered();
  void ReadEnded();

  // These return when the bytes may move.
  void WaitToRead(uint64_t bytes) { Wait(bytes, false); }
  void WaitToWrite(uint64_t bytes) { Wait(bytes, true); }

  // What waited to move these bytes does not move them after all.
  void GiveBack(uint64_t bytes);

  // From now on nobody waits.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  void Wait(uint64_t bytes, bool polite);
  Clock::duration TimeOf(uint64_t bytes) const;

  const uint64_t bytes_per_second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point due_;  // when what was let through is paid for
  uint64_t reads_ = 0;     // ordered, not ended
  bool stopped_ = false;
};

}  // namespace cairn
