// What the machine can do at best, measured now: kernels are judged by ratios to it, because clock
// and bandwidth of a shared machine change from one minute to the next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/thread_pool.h"

namespace cairn {

// Seconds that f() takes.
template <class F>
double SecondsOf(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The pool's threads together, in 1e9 a second; each is the best of `repetitions` tries of a few
// tens of milliseconds.
// Float32 operations of fused multiply-adds in the widest vectors, AVX-512 or AVX2; 0 without.
double MeasureFmaPeak(ThreadPool& pool, int repetitions);
double MeasureReadPeak(ThreadPool& pool, int repetitions);  // bytes, from a buffer of 512 MB
// The same for pieces that lie anywhere, read in the given order: each thread takes a part of them.
double MeasureScatteredReadPeak(ThreadPool& pool, std::span<const std::byte* const> pieces,
                                size_t piece_bytes, int repetitions);

}  // namespace cairn
