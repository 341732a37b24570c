#include "kernels/cuda/cuda_backend.h"

#include <string>
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"

namespace cairn::cuda {

Result<Backend> MakeCudaBackend(ComputeMode mode) {
  Backend backend;
  ASSIGN_OR_RETURN(backend.device, MakeCudaDevice());
  ASSIGN_OR_RETURN(backend.ops, MakeCudaOps(*backend.device, mode));
  backend.arithmetic = std::string("cuda-") + ComputeModeName(mode);
  return backend;
}

}  // namespace cairn::cuda
