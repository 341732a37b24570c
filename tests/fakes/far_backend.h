// The CPU's operations on a device whose memory the host cannot touch, as a GPU's: its addresses
// are mapped nowhere, so that a host that follows one ends at once, and operations refuse (CHECK)
// any other. Results have the bits of the CPU backend.
//
// Streams and operations are the CPU's. Blocks in the host's memory must be copied to the device
// before they are used. Whether copies are ordered as they should be is seen when they are late.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace cairn {

struct FarCopies {
  bool are_late = false;      // made when somebody waits for them, or looks (late_copy_device.h)
  double failure_chance = 0;  // of one to the device: nothing is copied, and the next event says so
  uint64_t seed = 1;
};

Result<Backend> MakeFarBackend(const CpuBackendOptions& options, const FarCopies& copies = {});

}  // namespace cairn
