// The CUDA runtime API, emulated: the device, and errors.

#include <cstring>
#include <map>
#include <string>

#include "tests/cuda_emu/machine.h"
#include "tests/cuda_emu/runtime.h"
#include "tests/cuda_emu/shared_memory.h"

namespace cairn::cuemu {
namespace {

thread_local constinit cudaError_t last_error = cudaSuccess;

const std::map<cudaError_t, const char*>& ErrorNames() {
  static const std::map<cudaError_t, const char*> names = {
      {cudaSuccess, "cudaSuccess"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
      {cudaErrorInitializationError, "cudaErrorInitializationError"},
      {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
      {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"},
      {cudaErrorNoDevice, "cudaErrorNoDevice"},
      {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable"},
      {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered"},
      {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered"},
      {cudaErrorNotReady, "cudaErrorNotReady"},
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
      {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources"},
      {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout"},
      {cudaErrorAssert, "cudaErrorAssert"},
      {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
      {cudaErrorNotSupported, "cudaErrorNotSupported"},
      {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable"},
      {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
      {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
  };
  return names;
}

}  // namespace

cudaError_t Answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace cairn::cuemu

using cairn::cuemu::Answer;
using cairn::cuemu::last_error;
using cairn::cuemu::Machine;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  CUEMU_ENTER(cudaGetDeviceCount);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  CUEMU_ENTER(cudaSetDevice);
  return Answer(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  CUEMU_ENTER(cudaGetDevice);
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  CUEMU_ENTER(cudaDriverGetVersion);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  CUEMU_ENTER(cudaGetDeviceProperties);
  if (device != 0) return Answer(cudaErrorInvalidDevice);
  Machine& machine = Machine::Get();
  const int capability = machine.settings().compute_capability;
  std::memset(static_cast<void*>(properties), 0, sizeof *properties);
  std::strcpy(properties->name, "Emulated GPU");
  properties->major = capability / 10;
  properties->minor = capability % 10;
  properties->totalGlobalMem = machine.memory().device_bytes();
  properties->multiProcessorCount = static_cast<int>(machine.settings().worker_count);
  properties->warpSize = static_cast<int>(cairn::cuemu::kWarpSize);
  properties->maxThreadsPerBlock = cairn::cuemu::kBlockThreadsMax;
  properties->sharedMemPerBlock = cairn::cuemu::kStaticSharedBytesMax;
  properties->sharedMemPerBlockOptin = cairn::cuemu::kDynamicSharedBytesMax;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  CUEMU_ENTER(cudaDeviceGetAttribute);
  if (device != 0) return Answer(cudaErrorInvalidDevice);
  const cairn::cuemu::Settings& settings = Machine::Get().settings();
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = settings.compute_capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = settings.compute_capability % 10;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = static_cast<int>(settings.worker_count);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = cairn::cuemu::kDynamicSharedBytesMax;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = cairn::cuemu::kBlockThreadsMax;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = static_cast<int>(cairn::cuemu::kWarpSize);
      return cudaSuccess;
    default:
      return Answer(cudaErrorNotSupported);
  }
}

cudaError_t cudaDeviceSynchronize() {
  CUEMU_ENTER(cudaDeviceSynchronize);
  Machine::Get().DrainAll();
  return Answer(Machine::Get().sticky_error());
}

cudaError_t cudaGetLastError() {
  const cudaError_t sticky = Machine::Get().sticky_error();
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  return sticky != cudaSuccess ? sticky : error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky = Machine::Get().sticky_error();
  return sticky != cudaSuccess ? sticky : last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  const auto found = cairn::cuemu::ErrorNames().find(error);
  return found == cairn::cuemu::ErrorNames().end() ? "unrecognized error code" : found->second;
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

}  // extern "C"
