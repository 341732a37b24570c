// The CPU as a device: buffers are host memory and a device address is a pointer.
//
// The compute stream does everything before the call returns, so its events have passed when they
// are recorded (they are null) and its Wait blocks the caller. A copy stream has a thread of its
// own and an in-order queue of at most kCopyQueueMax entries; a caller that finds it full waits
// for a place. A stream waits only for events recorded before the wait was queued, so waits cannot
// form a cycle and every queue drains.
// Threads: as kernels/device.h says. Buffers and streams must not outlive the device.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/device.h"

namespace cairn {

inline constexpr size_t kCopyQueueMax = 1024;

class CpuComputeStream final : public Stream {
 public:
  EventRef Record() override { return nullptr; }
  void Wait(const EventRef& event) override;
  void Copy(void* destination, const void* source, size_t size_bytes) override;
  void Clear(void* destination, size_t size_bytes) override;
  Status Synchronize() override { return Status(); }
};

// `info` as the backend describes itself; its memory_bytes bounds the sum of all buffers.
std::unique_ptr<Device> MakeCpuDevice(DeviceInfo info);

}  // namespace cairn
