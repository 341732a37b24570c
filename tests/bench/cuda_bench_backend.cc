#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/bench_backend.h"

namespace cairn {

Result<Backend> MakeBenchBackend(ComputeMode mode, uint32_t /*thread_count*/) {
  return cuda::MakeCudaBackend(mode);
}

bool IsEmulated() { return false; }

}  // namespace cairn
