// A GPU as a device: memory, streams and events over the CUDA runtime.
//
// Calls that cannot return a Status put their errors down. An error of one call stays with its
// stream, which reports it at the next Synchronize and runs no operation until then; the next event
// that is recorded says it too. One that makes the device useless (IsSticky) stays with the device,
// which is lost: from then on every Synchronize, Allocate and Event::Wait reports it. An event
// behind work that failed so has passed, since nothing more will come, and its Wait says so.
//
// Host memory lies on huge pages, near the GPU where the machine says where that is, and is
// page-locked. Streams are CudaStreams; nobody uses the null stream, and none waits for it. Threads
// that wait for an event sleep.
// Threads: as kernels/device.h says. Buffers, streams and events must not outlive the device.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/device.h"

namespace cairn::cuda {

// The first device that CUDA shows to this process (CUDA_VISIBLE_DEVICES chooses among several).
// kFailedPrecondition: no driver, no device, or one older than compute capability 8.0; kUnavailable
// when others have it to themselves; kResourceExhausted when it has no memory left for a process.
Result<std::unique_ptr<Device>> MakeCudaDevice();

}  // namespace cairn::cuda
