#include "kernels/cuda/weight_packer.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kLaneElements = 8;
constexpr uint32_t kGroupLanes = kQuantGroup / kLaneElements;
// Of BF16 the largest of a row is brought to just below 2^15: what is 2^32 times smaller is still
// exact then, with the 8 bits that BF16 has.
constexpr int kLargestExponent = 14;

// Where eight consecutive elements of an output lie in its panel.
struct Place {
  uint32_t block;
  uint32_t group;  // of the block
  uint32_t lane;
  uint32_t half;
};

Place PlaceOf(uint32_t output, uint32_t k) {
  return {.block = k / kBlockCols,
          .group = k % kBlockCols / kQuantGroup,
          .lane = output % 8 * kGroupLanes + k % kQuantGroup / kLaneElements,
          .half = output % kPanelOutputs / 8};
}

// Nibble 4 p of the word's low half is element 2 p, of its high half element 2 p + 1.
uint32_t NibbleWord(const std::byte* quants, uint32_t first) {
  uint32_t word = 0;
  for (uint32_t e = 0; e < kLaneElements; ++e) {
    const uint32_t k = first + e;
    const auto pair = static_cast<uint32_t>(quants[k % 16]);
    const uint32_t nibble = k < 16 ? pair & 15u : pair >> 4;
    word |= nibble << (e / 2 * 4 + e % 2 * 16);
  }
  return word;
}

// One group of one output, from the file's layout into its block.
void PackGroup(TensorType type, const std::byte* source, uint32_t output, uint32_t group,
               std::byte* block) {
  const uint32_t scale_bytes = type == TensorType::kQ4_1 ? 4 : 2;
  const uint32_t pair = group * 2 + output % kPanelOutputs / 8;
  const uint32_t g = output % 8;
  std::memcpy(block + CodeBytes(type) + g * (ScaleBytes(type) / 8) + pair * scale_bytes, source,
              scale_bytes);
  const std::byte* const quants = source + scale_bytes;
  for (uint32_t t = 0; t < kGroupLanes; ++t) {
    const uint32_t lane = g * kGroupLanes + t;
    if (type == TensorType::kQ8_0) {
      std::byte* const to = block + group * 512 + lane * 16 + pair % 2 * 8;
      for (uint32_t e = 0; e < kLaneElements; ++e) {
        to[e] = quants[t * kLaneElements + e] ^ std::byte{0x80};  // with 128 added
      }
    } else {
      const uint32_t word = NibbleWord(quants, t * kLaneElements);
      std::memcpy(block + lane * 16 + pair * 4, &word, sizeof(word));
    }
  }
}

void PackQuantised(const MatrixView& view, size_t panel_bytes, PackedBytes& packed) {
  const TensorTypeTraits traits = TraitsOf(view.type);
  const std::byte* source = view.bytes.data();
  for (uint32_t output = 0; output < view.rows; ++output) {
    std::byte* const panel = packed.data.data() + output / kPanelOutputs * panel_bytes;
    for (uint32_t k = 0; k < view.cols; k += kQuantGroup, source += traits.group_bytes) {
      const Place place = PlaceOf(output, k);
      PackGroup(view.type, source, output, place.group,
                panel + place.block * size_t{BlockBytes(view.type)});
    }
  }
}

float ReadFloat(TensorType type, const std::byte* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return type == TensorType::kF16 ? __half2float(__ushort_as_half(bits))
                                  : __bfloat162float(__ushort_as_bfloat16(bits));
}

// The power of two that brings the largest finite element of a BF16 row to its place.
int ExponentOf(const MatrixView& view, size_t output) {
  float max = 0;
  for (size_t k = 0; k < view.cols; ++k) {
    const float value = std::fabs(ReadFloat(view.type, &view.bytes[(output * view.cols + k) * 2]));
    if (std::isfinite(value)) max = std::max(max, value);
  }
  return max > 0 ? kLargestExponent - std::ilogb(max) : 0;
}

void PackFloats(const MatrixView& view, size_t panel_bytes, PackedBytes& packed) {
  for (uint32_t output = 0; output < view.rows; ++output) {
    std::byte* const panel = packed.data.data() + output / kPanelOutputs * panel_bytes;
    const int exponent = view.type == TensorType::kBF16 ? ExponentOf(view, output) : 0;
    packed.output_scales[output] = std::ldexp(1.0f, -exponent);
    for (uint32_t k = 0; k < view.cols; ++k) {
      const float value = ReadFloat(view.type, &view.bytes[(size_t{output} * view.cols + k) * 2]);
      const __half half = __float2half_rn(std::ldexp(value, exponent));
      const Place place = PlaceOf(output, k);
      std::byte* const to = panel + place.block * size_t{BlockBytes(TensorType::kF16)} +
                            (place.group * 2 + place.half) * 512 + place.lane * 16;
      std::memcpy(to + k % kLaneElements * 2, &half, sizeof(half));
    }
  }
}

}  // namespace

PackedBytes PackMatrix(const MatrixView& view) {
  if (view.type == TensorType::kF32) {
    return {view.type, 0, {view.bytes.begin(), view.bytes.end()}, {}};
  }
  const bool is_quantised = TraitsOf(view.type).group_elements > 1;
  PackedBytes packed = {.type = is_quantised ? view.type : TensorType::kF16,
                        .block_count = CeilDivide(view.cols, kBlockCols),
                        .data = {},
                        .output_scales = {}};
  const uint32_t panel_count = CeilDivide(view.rows, kPanelOutputs);
  const size_t panel_bytes = size_t{packed.block_count} * BlockBytes(packed.type);
  packed.data.resize(panel_count * panel_bytes);
  if (is_quantised) {
    PackQuantised(view, panel_bytes, packed);
  } else {
    packed.output_scales.resize(size_t{panel_count} * kPanelOutputs);
    PackFloats(view, panel_bytes, packed);
  }
  return packed;
}

}  // namespace cairn::cuda
