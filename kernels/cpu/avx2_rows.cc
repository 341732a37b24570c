// The row-wise operations in AVX2, and the table of this instruction set.
#include <immintrin.h>

#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx2.h"

namespace cairn {
namespace {

constexpr uint32_t kLanes = 8;
constexpr float kHalfMaxFloat = 65504.0f;

// Halves, quarters, ...: always the same tree.
AVX2_INLINE float SumOfLanes(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

void PanelProduct(const PanelProductArgs& args) {
  switch (args.weight->format()) {
    case PanelFormat::kF32:
    case PanelFormat::kF16:
    case PanelFormat::kBF16:
      return FloatProductAvx2(args);
    case PanelFormat::kQ8Pairs:
      return PairProductAvx2(args);
    case PanelFormat::kQ4Quads:
    case PanelFormat::kQ4QuadsMin:
      return QuadProductAvx2(args);
  }
}

// x[i ..] += delta[i ..] (where there is one) for 8 elements; returns their new values.
AVX2_INLINE __m256 Add8(float* x, const float* delta, uint32_t i) {
  __m256 value = _mm256_loadu_ps(x + i);
  if (delta != nullptr) {
    value = _mm256_add_ps(value, _mm256_loadu_ps(delta + i));
    _mm256_storeu_ps(x + i, value);
  }
  return value;
}

// x += delta; returns the sum of squares of the new x. Four sums hide the latency of the adder.
float AddAndSumSquares(float* x, const float* delta, uint32_t width) {
  __m256 sums[4] = {};
  uint32_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256 value = Add8(x, delta, i + j * kLanes);
      sums[j] = _mm256_fmadd_ps(value, value, sums[j]);
    }
  }
  for (; i + kLanes <= width; i += kLanes) {
    const __m256 value = Add8(x, delta, i);
    sums[0] = _mm256_fmadd_ps(value, value, sums[0]);
  }
  float total =
      SumOfLanes(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
  for (; i < width; ++i) {
    if (delta != nullptr) x[i] += delta[i];
    total += x[i] * x[i];
  }
  return total;
}

}  // namespace

void RmsNormAvx2(const RmsNormArgs& args, uint32_t row_begin, uint32_t row_end) {
  const uint32_t width = args.width;
  const uint32_t whole = width / kLanes * kLanes;
  for (uint32_t row = row_begin; row < row_end; ++row) {
    const size_t start = size_t{row} * width;
    float* const x = args.x + start;
    const float* const delta = args.delta != nullptr ? args.delta + start : nullptr;
    const float sum = AddAndSumSquares(x, delta, width);
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + args.epsilon);
    float* const out = args.out + start;  // may be delta
    const __m256 scales = _mm256_set1_ps(scale);
    for (uint32_t i = 0; i < whole; i += kLanes) {
      const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), scales);
      _mm256_storeu_ps(out + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(args.gain + i)));
    }
    for (uint32_t i = whole; i < width; ++i) out[i] = x[i] * scale * args.gain[i];
  }
}

namespace {

// Rotates 4 adjacent pairs: (a, b) -> (a cos - b sin, b cos + a sin).
AVX2_INLINE __m256 RotatePairs(__m256 pairs, __m256 cos_sin) {
  const __m256 swapped = _mm256_permute_ps(pairs, 0xb1);
  return _mm256_fmaddsub_ps(pairs, _mm256_moveldup_ps(cos_sin),
                            _mm256_mul_ps(swapped, _mm256_movehdup_ps(cos_sin)));
}

// Up to 8 floats, the rest zero.
AVX2_INLINE __m256 LoadUpTo8(const float* from, uint32_t count) {
  if (count >= kLanes) return _mm256_loadu_ps(from);
  alignas(32) float lanes[kLanes] = {};
  std::memcpy(lanes, from, count * sizeof(float));
  return _mm256_load_ps(lanes);
}

AVX2_INLINE void StoreUpTo8(float* to, __m256 value, uint32_t count) {
  if (count >= kLanes) return _mm256_storeu_ps(to, value);
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, value);
  std::memcpy(to, lanes, count * sizeof(float));
}

// 8 (or the last `count`) elements of a head from element `i` on, rotated where i is below
// rotary_dim. A vector that the border crosses is put together lane by lane.
AVX2_INLINE __m256 Rotated(const float* head, const float* cos_sin, uint32_t i, uint32_t count,
                           uint32_t rotary_dim) {
  const __m256 plain = LoadUpTo8(head + i, count);
  if (i >= rotary_dim) return plain;
  const uint32_t rotary_count = rotary_dim - i;
  const __m256 rotated = RotatePairs(plain, LoadUpTo8(cos_sin + i, rotary_count));
  if (rotary_count >= kLanes) return rotated;
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i is_plain =
      _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(static_cast<int>(rotary_count) - 1));
  return _mm256_blendv_ps(rotated, plain, _mm256_castsi256_ps(is_plain));
}

// To float16, nearest even; what float16 cannot hold becomes its largest value, because a block
// must hold finite values. A NaN stays one.
AVX2_INLINE __m128i ToFiniteHalves(__m256 value) {
  value = _mm256_min_ps(_mm256_set1_ps(kHalfMaxFloat), value);
  value = _mm256_max_ps(_mm256_set1_ps(-kHalfMaxFloat), value);
  return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

void WriteKeyValue(const RopeWriteKvArgs& args, uint32_t row, const float* cos_sin) {
  const KvLayout& layout = *args.layout;
  const BatchRow& place = args.batch->rows()[row];
  const uint32_t head_dim = layout.head_dim, block_tokens = layout.block_tokens;
  const uint32_t token = place.position % block_tokens;
  for (uint32_t head = 0; head < layout.kv_head_count; ++head) {
    const size_t source = (size_t{row} * layout.kv_head_count + head) * head_dim;
    uint16_t* const keys =
        reinterpret_cast<uint16_t*>(place.block + layout.key_offset(args.layer, head)) + token;
    uint16_t* const values =
        reinterpret_cast<uint16_t*>(place.block + layout.value_offset(args.layer, head)) +
        size_t{token} * head_dim;
    for (uint32_t i = 0; i < head_dim; i += kLanes) {
      const uint32_t count = head_dim - i < kLanes ? head_dim - i : kLanes;
      alignas(16) uint16_t halves[kLanes];
      const __m256 key = Rotated(args.k + source, cos_sin, i, count, args.rotary_dim);
      _mm_store_si128(reinterpret_cast<__m128i*>(halves), ToFiniteHalves(key));
      for (uint32_t j = 0; j < count; ++j) keys[size_t{i + j} * block_tokens] = halves[j];
      const __m256 value = LoadUpTo8(args.v + source + i, count);
      _mm_store_si128(reinterpret_cast<__m128i*>(halves), ToFiniteHalves(value));
      std::memcpy(values + i, halves, count * sizeof(uint16_t));
    }
  }
}

}  // namespace

void RopeWriteKvAvx2(const RopeWriteKvArgs& args, uint32_t row_begin, uint32_t row_end) {
  const uint32_t head_dim = args.layout->head_dim;
  const __m256 q_scale = _mm256_set1_ps(args.q_scale);
  for (uint32_t row = row_begin; row < row_end; ++row) {
    const BatchRow& place = args.batch->rows()[row];
    const float* const cos_sin = args.cos_sin + size_t{place.position} * args.rotary_dim;
    for (uint32_t head = 0; head < args.head_count; ++head) {
      float* const q = args.q + (size_t{row} * args.head_count + head) * head_dim;
      for (uint32_t i = 0; i < head_dim; i += kLanes) {
        const uint32_t count = head_dim - i < kLanes ? head_dim - i : kLanes;
        const __m256 rotated = Rotated(q, cos_sin, i, count, args.rotary_dim);
        StoreUpTo8(q + i, _mm256_mul_ps(rotated, q_scale), count);
      }
    }
    if (place.block != nullptr) WriteKeyValue(args, row, cos_sin);
  }
}

namespace {

// e^x for x in [-87, 87], within 2 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by the first
// eight terms of its series, whose remainder is below r^8 / 8! < 6e-9.
AVX2_INLINE __m256 Exp(__m256 x) {
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  constexpr float kTerms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
  __m256 power = _mm256_set1_ps(1.0f / 5040);
#pragma GCC unroll 7
  for (float term : kTerms) power = _mm256_fmadd_ps(power, r, _mm256_set1_ps(term));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(power), exponent));
}

// g / (1 + e^-g) * u. Beyond +-87 the exponential is held there: the quotient is then below 1e-35
// or equal to g. The operand order lets a NaN through.
AVX2_INLINE __m256 SwiGlu8(__m256 gate, __m256 up) {
  const __m256 limit = _mm256_set1_ps(87.0f);
  __m256 exponent = _mm256_sub_ps(_mm256_setzero_ps(), gate);
  exponent =
      _mm256_max_ps(_mm256_sub_ps(_mm256_setzero_ps(), limit), _mm256_min_ps(limit, exponent));
  const __m256 denominator = _mm256_add_ps(_mm256_set1_ps(1.0f), Exp(exponent));
  return _mm256_mul_ps(_mm256_div_ps(gate, denominator), up);
}

}  // namespace

void SwiGluAvx2(const SwiGluArgs& args, uint32_t row_begin, uint32_t row_end) {
  const size_t end = size_t{row_end} * args.width;
  for (size_t i = size_t{row_begin} * args.width; i < end; i += kLanes) {
    const uint32_t count = end - i < kLanes ? static_cast<uint32_t>(end - i) : kLanes;
    const __m256 out = SwiGlu8(LoadUpTo8(args.gate + i, count), LoadUpTo8(args.up + i, count));
    StoreUpTo8(args.out + i, out, count);
  }
}

constinit const CpuKernels kAvx2Kernels = {
    .instruction_set = "avx2",
    .quantize = QuantizeAvx2,
    .panel_product = PanelProduct,
    .rms_norm = RmsNormAvx2,
    .rope_write_kv = RopeWriteKvAvx2,
    .swiglu = SwiGluAvx2,
    .paged_attention = PagedAttentionAvx2,
};

}  // namespace cairn
