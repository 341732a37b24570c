#include <cuemu/emulator.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/bench_backend.h"

namespace cairn {
namespace {

// One machine for the life of the process.
void ConfigureOnce() {
  static const bool is_configured = [] {
    cuemu::Configure(
        {.device_memory_bytes = size_t{256} << 20, .host_memory_bytes = size_t{256} << 20});
    return true;
  }();
  (void)is_configured;
}

}  // namespace

Result<Backend> MakeBenchBackend(ComputeMode mode, uint32_t /*thread_count*/) {
  ConfigureOnce();
  return cuda::MakeCudaBackend(mode);
}

bool IsEmulated() { return true; }

}  // namespace cairn
