// Sees to it that a server that is to end does end. What a disk does not answer holds up threads
// that nothing can stop, and a driver or a client may do the same: the process then has to end
// around them. Nothing that was answered is lost by that: it was durable before.
//
//   (made) --grace--> the streams had their time --patience--> a silent disk is given up
//                                               \---max------> whatever it is, is given up
//
// Threads: one of its own calls `disk` and `give_up`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace cairn {

// What waits for the disk of the sessions.
struct DiskWait {
  std::chrono::nanoseconds silence{0};  // for so long it has not answered
  size_t session_count = 0;             // that have changes which are not durable
};

struct EndLimits {
  std::chrono::milliseconds grace{0};          // of running streams, from now on
  std::chrono::milliseconds patience{10'000};  // with a disk that does not answer
  std::chrono::milliseconds max{30'000};       // after the grace
  std::chrono::milliseconds look{100};         // how often it looks
};

class EndWatch {
 public:
  // `give_up` is called once, at most, with why and what is not written; it ends the process.
  EndWatch(const EndLimits& limits, std::function<DiskWait()> disk,
           std::function<void(const std::string& why)> give_up);
  ~EndWatch();  // the end is there
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

  // The sessions are written, and `disk` is not called any more.
  void SessionsAreWritten();

 private:
  void Run();
  std::optional<std::string> WhyNow(std::chrono::steady_clock::time_point now) const;

  const EndLimits limits_;
  const std::chrono::steady_clock::time_point grace_ends_;
  const std::function<void(const std::string& why)> give_up_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::function<DiskWait()> disk_;  // null: the sessions are written
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cairn
