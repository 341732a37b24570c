// The row-wise operations in plain C++, and the table of the portable kernels. No function of the
// C library that may round differently on another machine is used, so the bits are the same on all.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/portable.h"

namespace cairn {
namespace {

// The largest magnitude; a NaN counts as larger than anything, so that it is not lost.
float MaxMagnitude(const float* x) {
  uint32_t max = 0;
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    max = std::max(max, std::bit_cast<uint32_t>(x[k]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(max);
}

void StoreQuants(ActivationForm form, const int32_t* q, std::byte* to) {
  if (form == ActivationForm::kInt16) {
    for (uint32_t k = 0; k < kQuantGroup; ++k) {
      const auto word = static_cast<int16_t>(q[k]);
      std::memcpy(to + 2 * k, &word, sizeof(word));
    }
    return;
  }
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    const auto low = static_cast<int8_t>(q[k]);
    if (form == ActivationForm::kInt8) {
      to[k] = static_cast<std::byte>(low);
    } else {
      to[k] = static_cast<std::byte>((q[k] - low) / 256);
      to[kQuantGroup + k] = static_cast<std::byte>(low);
    }
  }
}

void Quantize(const QuantizeArgs& args, uint32_t row_begin, uint32_t row_end) {
  const float limit = args.form == ActivationForm::kInt8 ? kInt8Limit : kInt16Limit;
  const size_t group_bytes = kQuantGroup * BytesPerActivation(args.form);
  const size_t groups_per_row = args.cols / kQuantGroup;
  for (size_t group = row_begin * groups_per_row; group < row_end * groups_per_row; ++group) {
    const float* const x = args.x + group * kQuantGroup;
    const float max = MaxMagnitude(x);
    // Of infinite or undefined activations the scale tells; their integers are void.
    const bool is_void = max < kQuantizedMin || !std::isfinite(max);
    const float scale = max < kQuantizedMin ? 0.0f : max / limit;
    const float inverse = is_void ? 0.0f : limit / max;
    int32_t q[kQuantGroup];
    int32_t sum = 0;
    for (uint32_t k = 0; k < kQuantGroup; ++k) {
      q[k] = is_void ? 0 : static_cast<int32_t>(std::lrint(x[k] * inverse));
      sum += q[k];
    }
    StoreQuants(args.form, q, static_cast<std::byte*>(args.values) + group * group_bytes);
    args.scales[group] = {scale, scale * static_cast<float>(sum)};
  }
}

// x += delta (where there is one); returns the sum of squares of the new x.
float AddAndSumSquares(float* x, const float* delta, uint32_t width) {
  constexpr uint32_t kSums = 16;
  float sums[kSums] = {};
  for (uint32_t i = 0; i < width; ++i) {
    if (delta != nullptr) x[i] += delta[i];
    sums[i % kSums] += x[i] * x[i];
  }
  for (uint32_t step = kSums / 2; step > 0; step /= 2) {
    for (uint32_t i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return sums[0];
}

void RmsNorm(const RmsNormArgs& args, uint32_t row_begin, uint32_t row_end) {
  const uint32_t width = args.width;
  for (uint32_t row = row_begin; row < row_end; ++row) {
    const size_t start = size_t{row} * width;
    float* const x = args.x + start;
    const float* const delta = args.delta != nullptr ? args.delta + start : nullptr;
    const float sum = AddAndSumSquares(x, delta, width);
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + args.epsilon);
    float* const out = args.out + start;  // may be delta
    for (uint32_t i = 0; i < width; ++i) out[i] = x[i] * scale * args.gain[i];
  }
}

// to[i] = head[i], with adjacent pairs below rotary_dim rotated. May be in place.
void RotateHead(const float* head, const float* cos_sin, const RopeWriteKvArgs& args, float* to) {
  for (uint32_t i = 0; i < args.rotary_dim; i += 2) {
    const float a = head[i], b = head[i + 1];
    const float cosine = cos_sin[i], sine = cos_sin[i + 1];
    to[i] = a * cosine - b * sine;
    to[i + 1] = b * cosine + a * sine;
  }
  for (uint32_t i = args.rotary_dim; i < args.layout->head_dim; ++i) to[i] = head[i];
}

// What float16 cannot hold becomes its largest value, because a block must hold finite values.
uint16_t ToFiniteHalf(float value) { return FloatToHalf(std::clamp(value, -kHalfMax, kHalfMax)); }

void WriteKeyValue(const RopeWriteKvArgs& args, uint32_t row, const float* cos_sin,
                   float* rotated) {
  const KvLayout& layout = *args.layout;
  const BatchRow& place = args.batch->rows()[row];
  const uint32_t token = place.position % layout.block_tokens;
  for (uint32_t head = 0; head < layout.kv_head_count; ++head) {
    const size_t source = (size_t{row} * layout.kv_head_count + head) * layout.head_dim;
    std::byte* const keys = place.block + layout.key_offset(args.layer, head);
    std::byte* const values = place.block + layout.value_offset(args.layer, head);
    RotateHead(args.k + source, cos_sin, args, rotated);
    for (uint32_t i = 0; i < layout.head_dim; ++i) {
      const uint16_t key = ToFiniteHalf(rotated[i]), value = ToFiniteHalf(args.v[source + i]);
      std::memcpy(keys + (size_t{i} * layout.block_tokens + token) * 2, &key, sizeof(key));
      std::memcpy(values + (size_t{token} * layout.head_dim + i) * 2, &value, sizeof(value));
    }
  }
}

void RopeWriteKv(const RopeWriteKvArgs& args, uint32_t row_begin, uint32_t row_end) {
  const uint32_t head_dim = args.layout->head_dim;
  float rotated[kHeadDimMax];
  for (uint32_t row = row_begin; row < row_end; ++row) {
    const BatchRow& place = args.batch->rows()[row];
    const float* const cos_sin = args.cos_sin + size_t{place.position} * args.rotary_dim;
    for (uint32_t head = 0; head < args.head_count; ++head) {
      float* const q = args.q + (size_t{row} * args.head_count + head) * head_dim;
      RotateHead(q, cos_sin, args, q);
      for (uint32_t i = 0; i < head_dim; ++i) q[i] *= args.q_scale;
    }
    if (place.block != nullptr) WriteKeyValue(args, row, cos_sin, rotated);
  }
}

// e^x for x in [-87, 87]: x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by the first eight terms of
// its series, whose remainder is below r^8 / 8! < 6e-9.
float Exp(float x) {
  constexpr float kShift = 0x1.8p23f;  // added to a small number, it leaves the nearest integer
  const float n = (x * 1.44269504f + kShift) - kShift;
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  constexpr float kTerms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
  float power = 1.0f / 5040;
  for (float term : kTerms) power = power * r + term;
  const int32_t exponent = static_cast<int32_t>(n) * (1 << 23);
  return std::bit_cast<float>(std::bit_cast<int32_t>(power) + exponent);
}

// Beyond +-87 the exponential is held there: g / (1 + e^-g) is then below 1e-35 or equal to g.
void SwiGlu(const SwiGluArgs& args, uint32_t row_begin, uint32_t row_end) {
  const size_t end = size_t{row_end} * args.width;
  for (size_t i = size_t{row_begin} * args.width; i < end; ++i) {
    const float gate = args.gate[i];
    const float exponent = std::clamp(-gate, -87.0f, 87.0f);
    const float silu = std::isnan(gate) ? gate : gate / (1.0f + Exp(exponent));
    args.out[i] = silu * args.up[i];
  }
}

}  // namespace

constinit const CpuKernels kPortableKernels = {
    .instruction_set = "portable",
    .quantize = Quantize,
    .panel_product = PanelProductPortable,
    .rms_norm = RmsNorm,
    .rope_write_kv = RopeWriteKv,
    .swiglu = SwiGlu,
    .paged_attention = PagedAttentionPortable,
};

}  // namespace cairn
