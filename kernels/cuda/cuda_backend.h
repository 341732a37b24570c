// The CUDA backend: a device and the operations on it. The plugin (plugin/cuda_plugin.cc) offers it
// to the program; tests link it, built for the emulator.
#pragma once

#include "base/status.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace cairn::cuda {

// What MakeCudaDevice and MakeCudaOps say. Its arithmetic is "cuda-exact" or "cuda-fast".
Result<Backend> MakeCudaBackend(ComputeMode mode);

}  // namespace cairn::cuda
