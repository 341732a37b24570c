// Device code of a build without sanitizers is compiled with -fsanitize=thread and linked with this
// instead of TSan's runtime: each of its loads and stores calls here, and the block that runs
// checks it. The names and meanings are TSan's compiler interface (GCC's sanitizer.def). Functions
// that move more than 16 bytes at once (memcpy) are not seen, nor are atomics, which are not in
// device code (atomics.cc).

#include <cstddef>

#include "tests/cuda_emu/block_runner.h"

namespace cairn::cuemu {

// An access of `bytes`, which the compiler takes to be aligned.
#define CUEMU_ACCESS(bytes)                                                                      \
  void __tsan_read##bytes(void* address) {                                                       \
    BlockRunner::Access(address, bytes, bytes, AccessKind::kRead, __builtin_return_address(0));  \
  }                                                                                              \
  void __tsan_write##bytes(void* address) {                                                      \
    BlockRunner::Access(address, bytes, bytes, AccessKind::kWrite, __builtin_return_address(0)); \
  }                                                                                              \
  void __tsan_unaligned_read##bytes(void* address) {                                             \
    BlockRunner::Access(address, bytes, 1, AccessKind::kRead, __builtin_return_address(0));      \
  }                                                                                              \
  void __tsan_unaligned_write##bytes(void* address) {                                            \
    BlockRunner::Access(address, bytes, 1, AccessKind::kWrite, __builtin_return_address(0));     \
  }

extern "C" {

CUEMU_ACCESS(1)
CUEMU_ACCESS(2)
CUEMU_ACCESS(4)
CUEMU_ACCESS(8)
CUEMU_ACCESS(16)

void __tsan_read_range(void* address, size_t bytes) {
  BlockRunner::Access(address, bytes, 1, AccessKind::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  BlockRunner::Access(address, bytes, 1, AccessKind::kWrite, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

}  // extern "C"

}  // namespace cairn::cuemu
