// Which backend a process computes with.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kernels/backend.h"
#include "kernels/plugin.h"

namespace cairn {

// kAuto: CUDA where it can be had, otherwise the CPU.
enum class BackendKind { kAuto, kCpu, kCuda };

// "auto", "cpu" or "cuda".
std::optional<BackendKind> ParseBackendKind(std::string_view name);

struct BackendOptions {
  BackendKind kind = BackendKind::kAuto;
  CpuBackendOptions cpu;
  CudaBackendOptions cuda;
};

struct ChosenBackend {
  Backend backend;
  std::string reason;  // "cpu: there is no NVIDIA driver: ..."; one line for people
};

// What LoadCudaBackend or MakeCpuBackend says of the kind that was asked for.
Result<ChosenBackend> ChooseBackend(const BackendOptions& options);

}  // namespace cairn
