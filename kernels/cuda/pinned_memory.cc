#include "kernels/cuda/pinned_memory.h"

#include <cuda_runtime_api.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "kernels/cpu/host_memory.h"
#include "kernels/cuda/cuda_status.h"

namespace cairn::cuda {
namespace {

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(HostMemory memory, size_t size_bytes)
      : memory_(std::move(memory)), size_bytes_(size_bytes) {}
  ~PinnedBuffer() override { (void)cudaHostUnregister(memory_.bytes().data()); }
  std::byte* data() override { return memory_.bytes().data(); }
  size_t size_bytes() const override { return size_bytes_; }

 private:
  HostMemory memory_;
  const size_t size_bytes_;
};

// Where its pages are to come from when they are first used; a wish, so that failing is no error.
void PreferNode(std::span<std::byte> bytes, int numa_node) {
  constexpr int kNodesMax = 64;
  if (numa_node < 0 || numa_node >= kNodesMax) return;
  const unsigned long mask = 1UL << numa_node;
  (void)syscall(SYS_mbind, bytes.data(), bytes.size(), MPOL_PREFERRED, &mask, kNodesMax, 0);
}

}  // namespace

int NumaNodeOf(int pci_domain, int pci_bus, int pci_device) {
  char path[80];
  std::snprintf(path, sizeof path, "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", pci_domain,
                pci_bus, pci_device);
  int node = -1;
  std::ifstream file(path);
  return file >> node ? node : -1;
}

Result<std::unique_ptr<Buffer>> MakePinnedMemory(size_t size_bytes, int numa_node) {
  ASSIGN_OR_RETURN(HostMemory memory, HostMemory::Map(size_bytes));
  const std::span<std::byte> bytes = memory.bytes();
  PreferNode(bytes, numa_node);
  const std::string doing = "page-locking " + std::to_string(bytes.size()) + " bytes";
  constexpr unsigned kFlags = cudaHostRegisterPortable | cudaHostRegisterMapped;  // kernels copy it
  RETURN_IF_ERROR(ToStatus(cudaHostRegister(bytes.data(), bytes.size(), kFlags), doing.c_str()));
  return std::unique_ptr<Buffer>(std::make_unique<PinnedBuffer>(std::move(memory), size_bytes));
}

}  // namespace cairn::cuda
