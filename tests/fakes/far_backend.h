// The CPU's operations on a device whose memory the host cannot touch, as a GPU's: its addresses
// are mapped nowhere, so that a host that follows one ends at once, and operations refuse (CHECK)
// any other. Results have the bits of the CPU backend.
//
// Streams and operations are the CPU's. Blocks in the host's memory must be copied to the device
// before they are used; whether copies are ordered as they should be is not seen here.
#pragma once

#include "kernels/backend.h"

namespace cairn {

Result<Backend> MakeFarBackend(const CpuBackendOptions& options);

}  // namespace cairn
