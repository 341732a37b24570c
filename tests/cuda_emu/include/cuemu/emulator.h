// The emulator's controls, for tests: how threads and copies are scheduled, what fails, and what
// was found. One process is one emulated machine with one device; code under test sees CUDA's
// runtime API alone, with the toolkit's own headers.
//
// Reports: whatever is wrong on any GPU, however the threads happened to be scheduled (a barrier
// that some threads miss, a race in shared memory, an access outside of an object, a copy that
// nothing orders before its reader) is one report, printed to stderr and kept for TakeReports.
// Threads: Configure while no other thread uses the runtime; the rest at any time.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::cuemu {

enum class ThreadOrder : uint8_t { kForward, kReverse, kRandom };
// When a cp.async lands: as late as is legal finds a missing wait, as early finds a buffer that is
// filled again while others still read it.
enum class AsyncCopyTime : uint8_t { kLate, kEarly };

struct Settings {
  ThreadOrder order = ThreadOrder::kForward;
  uint64_t seed = 1;  // of kRandom; one seed gives one order, whatever the OS does
  AsyncCopyTime async_copy = AsyncCopyTime::kLate;
  size_t device_memory_bytes = size_t{32} << 20;
  size_t host_memory_bytes = size_t{32} << 20;  // page-locked memory in all
  unsigned worker_count = 2;                    // OS threads that run blocks
  unsigned jitter_us_max = 0;                   // work on a stream begins up to so much late
  int compute_capability = 90;
};

// Forgets everything, errors and reports too: a new machine. Streams, events and memory of before
// must be gone (CHECK).
void Configure(const Settings& settings);

// The `call_number`th call from now (1: the next) of this runtime function returns `error`; when it
// is one that CUDA keeps (an illegal address, a failed launch), every call after it does too.
void FailCall(const std::string& function, int call_number, cudaError_t error);
// Forgets the failures that have not come; how many.
size_t CancelFailures();

// What was found since the last time, oldest first.
std::vector<std::string> TakeReports();

// Ends a sticky error, as a new process would. Work that was waiting is lost.
void ClearStickyError();

// How often this runtime function was called on this machine ("cudaLaunchKernel" for launches).
uint64_t CallCount(const std::string& function);

struct Statistics {
  uint64_t threads = 0;
  uint64_t switches = 0;
  uint64_t meetings = 0;  // of warps
  uint64_t barriers = 0;
  size_t device_bytes_used = 0;
  size_t stream_count = 0;
  size_t event_count = 0;
};
Statistics ReadStatistics();

}  // namespace cairn::cuemu
