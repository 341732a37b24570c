// Anonymous memory of the host, zero-filled, on huge pages where the kernel gives them: weights and
// KV pools are read in streams of many megabytes, which 4 KiB pages would slow by their TLB misses.
// Pages are committed when they are first touched.
// Threads: a HostMemory belongs to its owner; the bytes are anybody's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace cairn {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

class HostMemory {
 public:
  // Aligned to kHugePageBytes. kResourceExhausted when the system refuses.
  static Result<HostMemory> Map(size_t size_bytes);

  HostMemory(HostMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  HostMemory& operator=(HostMemory&&) = delete;
  ~HostMemory();

  std::span<std::byte> bytes() const { return bytes_; }

  // Pages that are there, and those that will come, are not swapped out. kResourceExhausted when
  // the system's limit on locked memory (RLIMIT_MEMLOCK) does not allow it.
  Status Lock();

 private:
  explicit HostMemory(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

// What this process may use: the machine's memory, or its control group's limit if that is less.
uint64_t HostMemoryLimit();

}  // namespace cairn
