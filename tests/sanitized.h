// Whether sanitizers watch this build: many times slower, so tests do less of what they repeat.
#pragma once

namespace cairn {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace cairn
