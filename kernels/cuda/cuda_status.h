// From the errors of the CUDA runtime to Status.
//
//   kResourceExhausted   there is not so much memory
//   kFailedPrecondition  no driver, no device, or one that is too old: this machine cannot
//   kUnavailable         the device is in use by others, or it is lost
//   kInternal            anything else: a call of ours was wrong
//
// Most errors are of one call. Those of IsSticky are of the device: from then on every call of this
// process fails, and what the device's memory holds is not to be used.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace cairn::cuda {

constexpr bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

constexpr Code CodeOf(cudaError_t error) {
  if (IsSticky(error)) return Code::kUnavailable;
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Code::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemDriverMismatch:
      return Code::kFailedPrecondition;
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
      return Code::kUnavailable;
    default:
      return Code::kInternal;
  }
}

// "CUDA: copying: an illegal memory access was encountered (cudaErrorIllegalAddress)".
inline Status ToStatus(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return Status();
  return Status(CodeOf(error), std::string("CUDA: ") + doing + ": " + cudaGetErrorString(error) +
                                   " (" + cudaGetErrorName(error) + ")");
}

}  // namespace cairn::cuda
