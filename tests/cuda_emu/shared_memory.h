// The shared memory of one block: static objects in an arena with red zones between them, and the
// dynamic part. Both are full of NaN when a block begins, and ASan sees an access outside of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/cuda_emu/shared_shadow.h"

namespace cairn::cuemu {

inline constexpr size_t kStaticSharedBytesMax = 48 << 10;
inline constexpr size_t kDynamicSharedBytesMax = 227 << 10;  // with cudaFuncSetAttribute

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();

  // A block begins, when its OS thread has seen so many barriers.
  void Begin(size_t dynamic_bytes, uint32_t barrier);
  // Null when all static objects together are larger than a block may have.
  void* Static(const void* tag, size_t bytes, size_t alignment, const char* name);
  void* dynamic_memory() { return dynamic_; }
  // Null when the address is not in shared memory, nor near it.
  SharedShadow* FindShadow(const void* address);
  std::string Describe(const void* address) const;

 private:
  struct Object {
    const void* tag;
    std::byte* address;
    size_t bytes;
    const char* name;
  };

  std::byte* arena_;
  std::byte* dynamic_;
  size_t arena_used_ = 0;
  size_t static_bytes_ = 0;
  std::vector<Object> objects_;
  SharedShadow arena_shadow_;
  SharedShadow dynamic_shadow_;
};

}  // namespace cairn::cuemu
