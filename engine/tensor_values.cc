#include "engine/tensor_values.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace cairn {
namespace {

template <class Word>
Word LoadWord(const std::byte* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(Word));
  return word;
}

// Whether all bits of `kExponent` are set in the first `kWordCount` words of any group. Without a
// branch per group, so that the compiler can vectorise it.
template <class Word, Word kExponent, size_t kWordCount, size_t kGroupBytes>
bool AnyNonFinite(const std::byte* bytes, size_t group_count) {
  bool found = false;
  for (size_t i = 0; i < group_count; ++i) {
    for (size_t w = 0; w < kWordCount; ++w) {
      const Word word = LoadWord<Word>(bytes + i * kGroupBytes + w * sizeof(Word));
      found |= (word & kExponent) == kExponent;
    }
  }
  return found;
}

template <class Word, Word kExponent, size_t kWordCount, size_t kGroupBytes>
std::optional<size_t> FirstNonFiniteGroup(std::span<const std::byte> bytes) {
  static constexpr size_t kGroupsAtOnce = 4096;
  constexpr auto kAny = AnyNonFinite<Word, kExponent, kWordCount, kGroupBytes>;
  const size_t group_count = bytes.size() / kGroupBytes;
  for (size_t first = 0; first < group_count; first += kGroupsAtOnce) {
    const size_t end = std::min(first + kGroupsAtOnce, group_count);
    if (!kAny(bytes.data() + first * kGroupBytes, end - first)) continue;
    for (size_t group = first; group < end; ++group) {
      if (kAny(bytes.data() + group * kGroupBytes, 1)) return group;
    }
  }
  return std::nullopt;
}

constexpr uint16_t kHalfExponent = 0x7c00;
constexpr uint16_t kBrainExponent = 0x7f80;
constexpr uint32_t kFloatExponent = 0x7f800000;

}  // namespace

std::optional<size_t> FirstNonFinite(TensorType type, std::span<const std::byte> bytes) {
  CHECK(bytes.size() % TraitsOf(type).group_bytes == 0);
  switch (type) {
    case TensorType::kF32:
      return FirstNonFiniteGroup<uint32_t, kFloatExponent, 1, 4>(bytes);
    case TensorType::kF16:
      return FirstNonFiniteGroup<uint16_t, kHalfExponent, 1, 2>(bytes);
    case TensorType::kBF16:
      return FirstNonFiniteGroup<uint16_t, kBrainExponent, 1, 2>(bytes);
    case TensorType::kQ8_0:
      return FirstNonFiniteGroup<uint16_t, kHalfExponent, 1, 34>(bytes);
    case TensorType::kQ4_0:
      return FirstNonFiniteGroup<uint16_t, kHalfExponent, 1, 18>(bytes);
    case TensorType::kQ4_1:
      return FirstNonFiniteGroup<uint16_t, kHalfExponent, 2, 20>(bytes);
  }
  CHECK(false);
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent_and_fraction = half & 0x7fffu;
  if (exponent_and_fraction >= kHalfExponent) {  // infinity or NaN
    return std::bit_cast<float>(sign | kFloatExponent | (exponent_and_fraction & 0x3ff) << 13);
  }
  // Shifted into place the exponent is too small by the difference of the biases, 127 - 15. A
  // product with that power of two also normalises what was subnormal, and is exact.
  const float magnitude = std::bit_cast<float>(exponent_and_fraction << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

std::vector<float> ToFloats(TensorType type, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / TraitsOf(type).group_bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    switch (type) {
      case TensorType::kF32:
        values[i] = LoadWord<float>(bytes.data() + 4 * i);
        break;
      case TensorType::kF16:
        values[i] = HalfToFloat(LoadWord<uint16_t>(bytes.data() + 2 * i));
        break;
      case TensorType::kBF16:
        values[i] = std::bit_cast<float>(uint32_t{LoadWord<uint16_t>(bytes.data() + 2 * i)} << 16);
        break;
      default:
        CHECK(false);  // the caller asked for a quantised tensor
    }
  }
  return values;
}

}  // namespace cairn
