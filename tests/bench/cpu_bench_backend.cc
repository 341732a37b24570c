#include <thread>

#include "tests/bench/bench_backend.h"

namespace cairn {

Result<Backend> MakeBenchBackend(ComputeMode mode, uint32_t thread_count) {
  if (thread_count == 0) thread_count = std::thread::hardware_concurrency();
  return MakeCpuBackend({.thread_count = thread_count, .mode = mode});
}

bool IsEmulated() { return false; }

}  // namespace cairn
