// The backend that a bench measures. One of cpu_bench_backend.cc, cuda_bench_backend.cc and
// emulated_bench_backend.cc is linked.
#pragma once

#include <string_view>

#include "base/status.h"
#include "kernels/backend.h"

namespace cairn {

// `thread_count` is of the CPU; 0: one a processor.
Result<Backend> MakeBenchBackend(ComputeMode mode, uint32_t thread_count);

// "fast" or "exact".
inline ComputeMode ModeNamed(std::string_view name) {
  return name == ComputeModeName(ComputeMode::kFast) ? ComputeMode::kFast : ComputeMode::kExact;
}

// Times on the emulator say nothing: sizes are to be the smallest that run everything.
bool IsEmulated();

}  // namespace cairn
