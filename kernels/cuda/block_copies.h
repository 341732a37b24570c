// Many small copies in one launch: layers of blocks gathered from, or scattered to, wherever they
// lie. Either side may be page-locked host memory, which a kernel reads and writes over the bus.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace cairn::cuda {

struct BlockCopy {
  const std::byte* from;
  std::byte* to;
};

// Each of `count` copies (an array that the device reads) moves `size_bytes`, a multiple of 16 as
// are the addresses. Copies do not overlap.
cudaError_t LaunchBlockCopies(const BlockCopy* copies, uint32_t count, size_t size_bytes,
                              cudaStream_t stream);

}  // namespace cairn::cuda
