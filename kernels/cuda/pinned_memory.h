// Memory of the host that a GPU copies from and to at full speed: on huge pages, on the node of the
// machine that the GPU is attached to, and page-locked.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "kernels/device.h"

namespace cairn::cuda {

// The node of the machine's memory near a device on the PCI bus; -1 where there is no telling.
int NumaNodeOf(int pci_domain, int pci_bus, int pci_device);

// Zero-filled, near `numa_node` if that is not negative. kResourceExhausted when there is not so
// much, or no more may be page-locked.
Result<std::unique_ptr<Buffer>> MakePinnedMemory(size_t size_bytes, int numa_node);

}  // namespace cairn::cuda
