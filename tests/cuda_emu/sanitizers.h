// What the sanitizers must be told when code changes its stack or manages its own memory; nothing
// in a build without them. The scheduler's files are compiled without TSan's instrumentation
// (CMakeLists.txt), since its own bookkeeping is shared by all fibers and would order them.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(CAIRN_CUEMU_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cairn::cuemu {

// While it lives, TSan takes no notice of this fiber's accesses: those of the emulator itself,
// which reach TSan through intercepted memcpy and malloc even from files without instrumentation.
class IgnoreAccesses {
 public:
#if defined(CAIRN_CUEMU_TSAN)
  IgnoreAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~IgnoreAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  IgnoreAccesses() {}
  ~IgnoreAccesses() {}
#endif
  IgnoreAccesses(const IgnoreAccesses&) = delete;
  IgnoreAccesses& operator=(const IgnoreAccesses&) = delete;
};

// Inside an IgnoreAccesses: ends it for a while, since another fiber runs meanwhile, and TSan will
// have no thread end that still ignores. Whatever device code calls opens exactly one of them.
class NoticeAccesses {
 public:
#if defined(CAIRN_CUEMU_TSAN)
  NoticeAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  ~NoticeAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
#else
  NoticeAccesses() {}
  ~NoticeAccesses() {}
#endif
  NoticeAccesses(const NoticeAccesses&) = delete;
  NoticeAccesses& operator=(const NoticeAccesses&) = delete;
};

// What happened before a Release of an address happens before what follows an Acquire of it.
inline void Release([[maybe_unused]] void* address) {
#if defined(CAIRN_CUEMU_TSAN)
  __tsan_release(address);
#endif
}
inline void Acquire([[maybe_unused]] void* address) {
#if defined(CAIRN_CUEMU_TSAN)
  __tsan_acquire(address);
#endif
}

// From now on nobody may touch these bytes, or may again.
inline void Poison([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(address, bytes);
#endif
}
inline void Unpoison([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(address, bytes);
#endif
}

}  // namespace cairn::cuemu
