#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <system_error>

#include "base/check.h"

namespace cairn {
namespace {

constexpr size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

Result<HostMemory> HostMemory::Map(size_t size_bytes) {
  const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const Status refused =
      ResourceExhausted("no memory for " + std::to_string(size_bytes) + " bytes on the host");
  if (size_bytes == 0 || size_bytes > SIZE_MAX / 2) return refused;
  const size_t size = RoundUp(size_bytes, page_bytes);

  // mmap aligns to small pages only: map one huge page more and give back both ends.
  const size_t mapped_size = size + kHugePageBytes;
  void* const mapped =
      mmap(nullptr, mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return refused;
  std::byte* const begin = static_cast<std::byte*>(mapped);
  const size_t head = RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                      reinterpret_cast<uintptr_t>(begin);
  if (head > 0) CHECK(munmap(begin, head) == 0);
  const size_t tail = mapped_size - head - size;
  if (tail > 0) CHECK(munmap(begin + head + size, tail) == 0);

  // Only advice: a kernel without huge pages serves small ones.
  (void)madvise(begin + head, size, MADV_HUGEPAGE);
  return HostMemory(std::span(begin + head, size));
}

Status HostMemory::Lock() {
  if (mlock2(bytes_.data(), bytes_.size(), MLOCK_ONFAULT) == 0) return Status();
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  return ResourceExhausted("cannot lock " + std::to_string(bytes_.size()) + " bytes of memory: " +
                           std::generic_category().message(errno) + "; the limit is " +
                           std::to_string(limit.rlim_cur) + " bytes (ulimit -l)");
}

HostMemory::~HostMemory() {
  if (!bytes_.empty()) CHECK(munmap(bytes_.data(), bytes_.size()) == 0);
}

uint64_t HostMemoryLimit() {
  uint64_t limit =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // Version 2 writes "max" and version 1 a number beyond any machine where there is no limit.
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    uint64_t group_limit = 0;
    if (file >> group_limit && group_limit > 0) limit = std::min(limit, group_limit);
  }
  return limit;
}

}  // namespace cairn
