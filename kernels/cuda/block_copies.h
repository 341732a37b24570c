// Many small copies in one launch: parts of blocks gathered from, or scattered to, wherever they
// lie. Either side may be page-locked host memory, which a kernel reads and writes over the bus.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"

namespace cairn::cuda {

inline constexpr size_t kCopyAlignment = 16;  // of the addresses and sizes
inline bool IsAligned(const CopyPart& part) {
  const auto bits = reinterpret_cast<uintptr_t>(part.to) | reinterpret_cast<uintptr_t>(part.from);
  return (bits | part.size_bytes) % kCopyAlignment == 0;
}

// What one launch takes: the list is an argument of the kernel, so that nobody has to keep it.
inline constexpr size_t kLaunchPartsMax = 128;

// At least one part; all IsAligned, none empty, none above 1 GiB. They do not overlap.
cudaError_t LaunchBlockCopies(std::span<const CopyPart> parts, cudaStream_t stream);

}  // namespace cairn::cuda
