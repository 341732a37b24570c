// A time line of the engine's steps in Chrome's trace format, for chrome://tracing or Perfetto.
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace cairn {

class TraceWriter {
 public:
  static constexpr uint64_t kEventsMax = 2'000'000;  // then it stops writing: about 300 MB

  // Truncates the file. kInvalidArgument when it cannot be written.
  static Result<std::unique_ptr<TraceWriter>> Open(const std::string& path);
  ~TraceWriter();  // ends the JSON array
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Steps have a track of their own; so has what a sequence computes, and what it loads.
  static constexpr uint64_t kStepTrack = 1;
  static uint64_t ComputeTrack(uint64_t sequence) { return 2 * sequence + 2; }
  static uint64_t LoadTrack(uint64_t sequence) { return 2 * sequence + 3; }

  // A span named `name` (plain ASCII); `args_json` is "" or JSON members such as "\"rows\":3".
  void Span(const char* name, Clock::Monotonic begin, Clock::Monotonic end,
            const std::string& args_json = "", uint64_t track = kStepTrack);
  // A moment, in the same way.
  void Instant(const char* name, Clock::Monotonic at, const std::string& args_json, uint64_t track);

 private:
  explicit TraceWriter(std::FILE* file) : file_(file) {}
  std::FILE* file_;
  // False: it takes no more of them.
  bool BeginEvent(const char* name, char phase, Clock::Monotonic at, uint64_t track);

  uint64_t event_count_ = 0;
  std::optional<Clock::Monotonic> origin_;
};

}  // namespace cairn
