// A stream of a CUDA device, as the operations need it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "kernels/device.h"

namespace cairn::cuda {

class CudaStream : public Stream {
 public:
  virtual cudaStream_t handle() const = 0;
  // Work could not be put on the stream, which has failed with it. The first such Status is what
  // Synchronize gives.
  virtual void Fail(Status status) = 0;
  // The same for what the runtime answers.
  void Note(cudaError_t error) {
    if (error == cudaSuccess) return;
    Fail(Status(Code::kInternal, std::string("CUDA: ") + cudaGetErrorName(error)));
  }
};

}  // namespace cairn::cuda
