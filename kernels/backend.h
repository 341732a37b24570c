// A backend is a Device and the Ops that run on it. This is the one place that knows which exist.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace cairn {

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // uses *device
  std::string arithmetic;    // "cpu-avx2-exact": goes into KvLayout
};

struct CpuBackendOptions {
  uint32_t thread_count = 0;  // 1..256; compute threads, the caller included
  ComputeMode mode = ComputeMode::kExact;
  // "portable", "avx2" or "avx512"; default: the best that the processor has.
  std::optional<std::string> instruction_set;
};

// kInvalidArgument for an unknown instruction set or thread count, kFailedPrecondition for one that
// this processor lacks.
Result<Backend> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace cairn
