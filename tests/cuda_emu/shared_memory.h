// The shared memory of one block: static objects in an arena with red zones between them, and the
// dynamic part. Both are full of NaN when a block begins, and ASan sees an access outside of them.
#pragma once

#include <cstddef>
#include <vector>

namespace cairn::cuemu {

inline constexpr size_t kStaticSharedBytesMax = 48 << 10;
inline constexpr size_t kDynamicSharedBytesMax = 227 << 10;  // with cudaFuncSetAttribute

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();

  void Begin(size_t dynamic_bytes);  // a block begins
  // Null when all static objects together are larger than a block may have.
  void* Static(const void* tag, size_t bytes, size_t alignment);
  void* dynamic_memory() { return dynamic_; }

 private:
  struct Object {
    const void* tag;
    std::byte* address;
  };

  std::byte* arena_;
  std::byte* dynamic_;
  size_t arena_used_ = 0;
  size_t static_bytes_ = 0;
  std::vector<Object> objects_;
};

}  // namespace cairn::cuemu
