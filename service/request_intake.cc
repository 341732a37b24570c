#include "service/request_intake.h"

#include <malloc.h>

#include <chrono>
#include <string>

namespace cairn {
namespace {

constexpr size_t kTrimBytesMin = 1u << 20;

// What requests leave free in the heap goes back to the system, for which the C library has no
// reason of its own: the threads that read requests each have an arena, and these only grow.
void TrimHeap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

Result<RequestIntake::Ticket> RequestIntake::Admit(size_t bytes) {
  if (bytes <= kSmallBytesMax) return Ticket(nullptr, 0);
  const size_t before = bytes_in_flight_.fetch_add(bytes);
  if (bytes <= bytes_max_ && before <= bytes_max_ - bytes) return Ticket(this, bytes);
  bytes_in_flight_ -= bytes;
  return ResourceExhausted("requests of " + std::to_string(before) +
                           " bytes are being read, and another " + std::to_string(bytes) +
                           " are over the limit of " + std::to_string(bytes_max_))
      .WithRetryAfter(std::chrono::milliseconds(200));
}

void RequestIntake::Return(size_t bytes) {
  const bool is_last = bytes_in_flight_.fetch_sub(bytes) == bytes;
  if (is_last && bytes >= kTrimBytesMin) TrimHeap();
}

}  // namespace cairn
