// CHECK: what must hold unless there is a bug. It is on in every build; a failed one prints the
// condition with its place and aborts, so that a broken invariant never becomes a wrong answer.
#pragma once

namespace cairn {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace cairn

#define CHECK(condition)                        \
  (__builtin_expect(!!(condition), 1) ? void(0) \
                                      : ::cairn::CheckFailed(#condition, __FILE__, __LINE__))

// For conditions too costly to test on hot paths of a release build.
#ifdef NDEBUG
#define DCHECK(condition) ((void)sizeof(!(condition)))
#else
#define DCHECK(condition) CHECK(condition)
#endif
