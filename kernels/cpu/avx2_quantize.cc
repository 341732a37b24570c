// Activations as integers in AVX2: a scale for every row and group of 32, so that a row's integers
// depend on that row alone.
#include <immintrin.h>

#include "kernels/cpu/avx2.h"

namespace cairn {
namespace {

AVX2_INLINE int32_t SumOfLanes(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

// The largest magnitude; a NaN counts as larger than anything, so that it is not lost.
AVX2_INLINE float MaxMagnitude(const __m256 (&values)[4]) {
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  __m256i max = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (const __m256& value : values) {
    max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(value), magnitude_bits));
  }
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

// Packs 32 int32 into 32 int16 in order, saturating.
AVX2_INLINE void PackToInt16(const __m256i (&q)[4], __m256i (&packed)[2]) {
  packed[0] = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[0], q[1]), 0xd8);
  packed[1] = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2], q[3]), 0xd8);
}

AVX2_INLINE __m256i PackToInt8(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
}

// Writes 32 quants in the form's order.
template <ActivationForm kForm>
AVX2_INLINE void StoreQuants(const __m256i (&q)[4], std::byte* to) {
  __m256i words[2];
  PackToInt16(q, words);
  if constexpr (kForm == ActivationForm::kInt16) {
    StoreInt(to, words[0]);
    StoreInt(to + 32, words[1]);
  } else if constexpr (kForm == ActivationForm::kInt8) {
    StoreInt(to, PackToInt8(words[0], words[1]));
  } else {
    // q = 256 * high + low with low in -128..127, so high is q / 256 rounded, halves upwards.
    __m256i low[2], high[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm256_srai_epi16(_mm256_slli_epi16(words[i], 8), 8);
      high[i] = _mm256_srai_epi16(_mm256_sub_epi16(words[i], low[i]), 8);
    }
    StoreInt(to, PackToInt8(high[0], high[1]));
    StoreInt(to + 32, PackToInt8(low[0], low[1]));
  }
}

template <ActivationForm kForm>
void QuantizeRows(const QuantizeArgs& args, uint32_t row_begin, uint32_t row_end) {
  constexpr float kLimit = kForm == ActivationForm::kInt8 ? kInt8Limit : kInt16Limit;
  constexpr size_t kGroupBytes = kQuantGroup * BytesPerActivation(kForm);
  const size_t groups_per_row = args.cols / kQuantGroup;
  const size_t end = row_end * groups_per_row;
  for (size_t group = row_begin * groups_per_row; group < end; ++group) {
    const float* const x = args.x + group * kQuantGroup;
    __m256 values[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) values[i] = _mm256_loadu_ps(x + i * 8);
    const float max = MaxMagnitude(values);
    const bool is_zero = max < kQuantizedMin;
    const float scale = is_zero ? 0.0f : max / kLimit;
    const __m256 inverse = _mm256_set1_ps(is_zero ? 0.0f : kLimit / max);
    __m256i q[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
    StoreQuants<kForm>(q, static_cast<std::byte*>(args.values) + group * kGroupBytes);
    const int32_t sum =
        SumOfLanes(_mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3])));
    args.scales[group] = {scale, scale * static_cast<float>(sum)};
  }
}

}  // namespace

void QuantizeAvx2(const QuantizeArgs& args, uint32_t row_begin, uint32_t row_end) {
  switch (args.form) {
    case ActivationForm::kInt16:
      return QuantizeRows<ActivationForm::kInt16>(args, row_begin, row_end);
    case ActivationForm::kInt8Pair:
      return QuantizeRows<ActivationForm::kInt8Pair>(args, row_begin, row_end);
    case ActivationForm::kInt8:
      return QuantizeRows<ActivationForm::kInt8>(args, row_begin, row_end);
    case ActivationForm::kFloat:
      return;
  }
}

}  // namespace cairn
