// What the files compiled for AVX2, FMA and F16C share. Only they may include this. Whatever they
// take from headers must be inlined: an out-of-line copy of an inline function, compiled here,
// could be the one that the linker keeps for the code that runs on lesser processors.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/cpu_kernels.h"

#define AVX2_INLINE [[gnu::always_inline]] inline

namespace cairn {

void QuantizeAvx2(const QuantizeArgs& args, uint32_t row_begin, uint32_t row_end);
void RmsNormAvx2(const RmsNormArgs& args, uint32_t row_begin, uint32_t row_end);
void RopeWriteKvAvx2(const RopeWriteKvArgs& args, uint32_t row_begin, uint32_t row_end);
void SwiGluAvx2(const SwiGluArgs& args, uint32_t row_begin, uint32_t row_end);
void FloatProductAvx2(const PanelProductArgs& args);  // kF32, kF16, kBF16
void PairProductAvx2(const PanelProductArgs& args);   // kQ8Pairs
void QuadProductAvx2(const PanelProductArgs& args);   // kQ4Quads, kQ4QuadsMin

// Keeps a value in a register where the compiler would rather load it again for each use, and a
// sum in its order where it would rather build a tree of sums and spill the branches.
AVX2_INLINE __m256i Pinned(__m256i value) {
  asm("" : "+x"(value));
  return value;
}
AVX2_INLINE __m256 Pinned(__m256 value) {
  asm("" : "+x"(value));
  return value;
}

// What is loaded from memory below is not loaded above, where it would take registers from sums.
AVX2_INLINE void LoadNothingEarlier() { asm volatile("" : : : "memory"); }

// How far ahead of its use a stream of weights is fetched: 150 ns at 40 GB/s, a core's share.
inline constexpr size_t kPrefetchBytes = 6144;

// Fetches what follows [from, from + size_bytes) at that distance.
AVX2_INLINE void PrefetchAhead(const std::byte* from, size_t size_bytes) {
  for (size_t line = 0; line < size_bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes + line, _MM_HINT_T0);
  }
}

AVX2_INLINE __m256i LoadInt(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
AVX2_INLINE __m256 LoadFloats(const std::byte* from) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
}
AVX2_INLINE __m256 LoadHalves(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
AVX2_INLINE void StoreInt(std::byte* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
AVX2_INLINE void StoreFloats(std::byte* to, __m256 value) {
  _mm256_storeu_ps(reinterpret_cast<float*>(to), value);
}

// The four bytes at `from` in every lane.
AVX2_INLINE __m256i Broadcast32(const void* from) {
  int32_t four_bytes;
  std::memcpy(&four_bytes, from, sizeof(four_bytes));
  return _mm256_set1_epi32(four_bytes);
}

}  // namespace cairn
