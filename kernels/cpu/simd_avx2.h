// Sums, maxima and powers of vectors of eight float32. As kernels/cpu/avx2.h: only for files that
// are compiled for AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/exp2.h"

namespace cairn {

// All ones in the first `count` lanes, zeros in the others.
AVX2_INLINE __m256 FirstLanes(uint32_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane));
}

// ((0+4) + (2+6)) + ((1+5) + (3+7)), by lane.
AVX2_INLINE float HorizontalSum(__m256 vector) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps(vector, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

AVX2_INLINE float HorizontalMax(__m256 vector) {
  __m128 max = _mm_max_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps(vector, 1));
  max = _mm_max_ps(max, _mm_movehl_ps(max, max));
  return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

// 2^x by lane for x in [-inf, 0], as in exp2.h: exactly 0 below kExp2Min and for a NaN.
AVX2_INLINE __m256 Exp2NonPositive(__m256 x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(kExp2Min));  // the second operand where x is a NaN
  const __m256 shift = _mm256_set1_ps(kRoundingShift);
  const __m256 shifted = _mm256_add_ps(x, shift);
  const __m256 r = _mm256_sub_ps(x, _mm256_sub_ps(shifted, shift));
  __m256 sum = _mm256_set1_ps(kExp2Coefficients[5]);
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(kExp2Coefficients[4]));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(kExp2Coefficients[3]));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(kExp2Coefficients[2]));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(kExp2Coefficients[1]));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(kExp2Coefficients[0]));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), exponent));
}

}  // namespace cairn
