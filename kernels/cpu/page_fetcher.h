// Brings the pages of a mapping into being before they are used, on a thread of its own, in the
// time that nobody else wants. A page that is touched for the first time costs the thread that
// touches it the clearing of a huge page, and in a virtual machine more than that: up to some
// milliseconds, which a step should not wait.
//
// Threads: FetchTo from any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>

namespace cairn {

class PageFetcher {
 public:
  explicit PageFetcher(std::span<std::byte> bytes);
  ~PageFetcher();
  PageFetcher(const PageFetcher&) = delete;
  PageFetcher& operator=(const PageFetcher&) = delete;

  // The first `size_bytes` are wanted. Does not wait for them.
  void FetchTo(size_t size_bytes);

 private:
  void Run();

  const std::span<std::byte> bytes_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  size_t wanted_bytes_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cairn
