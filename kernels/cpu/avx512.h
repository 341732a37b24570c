// What the files compiled for AVX-512 (F, BW, DQ, VL, VNNI) share, on top of what
// kernels/cpu/avx2.h gives them. Only they may include this, and the rule of avx2.h holds: whatever
// they take from headers must be inlined.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/avx2.h"

#define AVX512_INLINE [[gnu::always_inline]] inline

namespace cairn {

void FloatProductAvx512(const PanelProductArgs& args);  // kF32, kF16, kBF16
void PairProductAvx512(const PanelProductArgs& args);   // kQ8Pairs
void QuadProductAvx512(const PanelProductArgs& args);   // kQ4Quads, kQ4QuadsMin

// As in avx2.h: the value stays in its register.
AVX512_INLINE __m512i Pinned(__m512i value) {
  asm("" : "+v"(value));
  return value;
}
AVX512_INLINE __m512 Pinned(__m512 value) {
  asm("" : "+v"(value));
  return value;
}

AVX512_INLINE __m512i LoadInt512(const std::byte* from) { return _mm512_loadu_si512(from); }
AVX512_INLINE __m512 LoadFloats512(const std::byte* from) { return _mm512_loadu_ps(from); }
AVX512_INLINE __m512 LoadHalves512(const std::byte* from) { return _mm512_cvtph_ps(LoadInt(from)); }

// The four bytes at `from` in every lane.
AVX512_INLINE __m512i Broadcast32Wide(const void* from) {
  int32_t four_bytes;
  std::memcpy(&four_bytes, from, sizeof(four_bytes));
  return _mm512_set1_epi32(four_bytes);
}

// The addresses of kRows rows at one stride. An address can hold one or two strides, so that every
// third row has a register of its own; left to itself the compiler computes the others anew for
// each use.
template <int kRows, class Element>
class RowAddresses {
 public:
  AVX512_INLINE RowAddresses(const Element* first, size_t stride) : stride_(stride) {
    for (int i = 0; i < kBases; ++i) {
      bases_[i] = first + 3 * i * stride;
      asm("" : "+r"(bases_[i]));
    }
  }

  AVX512_INLINE const Element* operator[](int row) const {
    return bases_[row / 3] + row % 3 * stride_;
  }
  AVX512_INLINE void Advance(size_t elements) {
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) bases_[i] += elements;
  }

 private:
  static constexpr int kBases = (kRows + 2) / 3;
  const Element* bases_[kBases];
  size_t stride_;
};

}  // namespace cairn
