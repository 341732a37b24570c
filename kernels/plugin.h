// The CUDA backend, which lives in a shared library of its own: the program itself runs on machines
// that have no driver, no device and none of CUDA's libraries.
#pragma once

#include <string>

#include "base/status.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace cairn {

struct CudaBackendOptions {
  std::string plugin;  // the path of libcairn_cuda.so
  ComputeMode mode = ComputeMode::kExact;
  // Looked for first: where there is no driver, CUDA's libraries, which are large, stay unloaded.
  std::string driver = "libcuda.so.1";
};

// The plugin stays loaded until the process ends. One line says what is missing: kNotFound, there
// is no such file; kFailedPrecondition, the driver, a library that the plugin needs, a device that
// it can use, or it is of another build; what else the plugin says of the device.
Result<Backend> LoadCudaBackend(const CudaBackendOptions& options);

}  // namespace cairn
