#include "tests/bench/machine_peaks.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/cpu/host_memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cairn {
namespace {

std::atomic<uint64_t> sink;  // so that nothing measured is optimised away

// A try lasts a millisecond or two and a repetition is this many, so that some try is undisturbed.
constexpr int kTries = 16;

#if defined(__x86_64__)
constexpr int kSums = 12;  // in flight: more than latency times rate of any processor
constexpr int64_t kFmaRounds = 200'000;

__attribute__((target("avx2,fma"))) void RunFmaAvx2() {
  __m256 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (int64_t round = 0; round < kFmaRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m256 sum = _mm256_fmadd_ps(sums[i], factor, factor);
      asm("" : "+x"(sum));  // of the value: to name the array would put it into memory
      sums[i] = sum;
    }
  }
  float total = 0;
  for (int i = 0; i < kSums; ++i) total += _mm256_cvtss_f32(sums[i]);
  sink += static_cast<uint64_t>(total);
}

__attribute__((target("avx512f"))) void RunFmaAvx512() {
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t round = 0; round < kFmaRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      __m512 sum = _mm512_fmadd_ps(sums[i], factor, factor);
      asm("" : "+v"(sum));
      sums[i] = sum;
    }
  }
  float total = 0;
  for (int i = 0; i < kSums; ++i) total += _mm512_cvtss_f32(sums[i]);
  sink += static_cast<uint64_t>(total);
}
#endif

constexpr size_t kReadBytes = size_t{512} << 20;
constexpr size_t kReadAhead = 4096;

// Reads [begin, end), fetching ahead, beyond the end from `next` on.
void ReadAll(const std::byte* begin, const std::byte* end, const std::byte* next) {
  using Words = uint64_t __attribute__((vector_size(16), may_alias));
  Words sums[4] = {};
  for (const std::byte* line = begin; line < end; line += 64) {
    const std::byte* const ahead = line + kReadAhead;
    __builtin_prefetch(ahead < end ? ahead : next + (ahead - end));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] |= reinterpret_cast<const Words*>(line)[i];
  }
  const Words all = (sums[0] | sums[1]) | (sums[2] | sums[3]);
  sink += all[0] | all[1];
}

}  // namespace

double MeasureFmaPeak(ThreadPool& pool, int repetitions) {
  double best = 0;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  const bool is_wide = __builtin_cpu_supports("avx512f");
  const double operations = kFmaRounds * kSums * (is_wide ? 32.0 : 16.0) * pool.thread_count();
  for (int i = 0; i < repetitions * kTries; ++i) {
    const double seconds =
        SecondsOf([&] { pool.Run([&](uint32_t) { is_wide ? RunFmaAvx512() : RunFmaAvx2(); }); });
    best = std::max(best, operations / seconds * 1e-9);
  }
#else
  (void)pool, (void)repetitions;
#endif
  return best;
}

double MeasureReadPeak(ThreadPool& pool, int repetitions) {
  Result<HostMemory> memory = HostMemory::Map(kReadBytes);
  CHECK(memory.ok());
  std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{1});
  const size_t part = kReadBytes / kTries / pool.thread_count() / 64 * 64;
  double best = 0;
  for (int i = 0; i < repetitions * kTries; ++i) {
    const std::byte* const base = memory->bytes().data() + kReadBytes / kTries * (i % kTries);
    const double seconds = SecondsOf([&] {
      pool.Run([&](uint32_t thread) {
        const std::byte* const end = base + (thread + 1) * part;
        ReadAll(base + thread * part, end, end);
      });
    });
    best = std::max(best, static_cast<double>(part) * pool.thread_count() / seconds * 1e-9);
  }
  return best;
}

double MeasureScatteredReadPeak(ThreadPool& pool, std::span<const std::byte* const> pieces,
                                size_t piece_bytes, int repetitions) {
  const size_t part = pieces.size() / kTries / pool.thread_count();
  CHECK(part > 0);
  double best = 0;
  for (int i = 0; i < repetitions * kTries; ++i) {
    const auto tried = pieces.subspan(part * pool.thread_count() * (i % kTries));
    const double seconds = SecondsOf([&] {
      pool.Run([&](uint32_t thread) {
        const std::byte* const* piece = &tried[part * thread];
        for (size_t left = part; left > 0; --left, ++piece) {
          ReadAll(*piece, *piece + piece_bytes, left > 1 ? piece[1] : *piece);
        }
      });
    });
    const double bytes = static_cast<double>(piece_bytes) * part * pool.thread_count();
    best = std::max(best, bytes / seconds * 1e-9);
  }
  return best;
}

}  // namespace cairn
