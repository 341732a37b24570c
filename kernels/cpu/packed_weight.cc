#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/half.h"
#include "kernels/matrix_check.h"

namespace cairn {
namespace {

constexpr size_t kChunkBytes = size_t{32} << 20;
constexpr size_t kWeightAlignment = 64;

constexpr uint32_t kScaleBytes = kPanelOutputs * 2;

uint16_t LoadHalf(const std::byte* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

// Where element (k, output) of a group's quants lies, from the start of the quants.
constexpr uint32_t PairOffset(uint32_t k, uint32_t output) {
  return (k / 2 * kPanelOutputs + output) * 2 + k % 2;
}
constexpr uint32_t QuadOffset(uint32_t k, uint32_t output) {
  const uint32_t low_k = k % 16;
  return (low_k / 4 * kPanelOutputs + output) * 4 + low_k % 4;
}
constexpr uint32_t QuadShift(uint32_t k) { return k < 16 ? 0 : 4; }

// The f16 scales that a file's group starts with, and the quants behind them.
constexpr uint32_t ScaleCount(PanelFormat format) {
  return format == PanelFormat::kQ4QuadsMin ? 2 : 1;
}

// Copies one group of one output from the file's layout into its panel.
void PackGroup(PanelFormat format, const std::byte* source, uint32_t output, std::byte* group) {
  const uint32_t scale_count = ScaleCount(format);
  for (uint32_t i = 0; i < scale_count; ++i) {
    std::memcpy(group + i * kScaleBytes + output * 2, source + 2 * i, 2);
  }
  const std::byte* const file_quants = source + 2 * scale_count;
  std::byte* const quants = group + scale_count * kScaleBytes;
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    if (format == PanelFormat::kQ8Pairs) {
      quants[PairOffset(k, output)] = file_quants[k];
    } else {
      const std::byte pair = file_quants[k % 16];
      const std::byte nibble = k < 16 ? pair & std::byte{15} : pair >> 4;
      quants[QuadOffset(k, output)] |= nibble << QuadShift(k);
    }
  }
}

// The inverse of PackGroup, as float32.
void ReadGroup(PanelFormat format, const std::byte* group, uint32_t output, float* out) {
  const uint32_t scale_count = ScaleCount(format);
  const float scale = HalfToFloat(LoadHalf(group + output * 2));
  const float offset = format == PanelFormat::kQ4QuadsMin
                           ? HalfToFloat(LoadHalf(group + kScaleBytes + output * 2))
                           : -8.0f * scale;
  const std::byte* const quants = group + scale_count * kScaleBytes;
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    if (format == PanelFormat::kQ8Pairs) {
      out[k] = scale * static_cast<float>(static_cast<int8_t>(quants[PairOffset(k, output)]));
    } else {
      const std::byte nibble = (quants[QuadOffset(k, output)] >> QuadShift(k)) & std::byte{15};
      out[k] = scale * static_cast<float>(nibble) + offset;
    }
  }
}

float ReadElement(PanelFormat format, const std::byte* element) {
  if (format == PanelFormat::kF16) return HalfToFloat(LoadHalf(element));
  if (format == PanelFormat::kBF16) return BfloatToFloat(LoadHalf(element));
  float value;
  std::memcpy(&value, element, sizeof(value));
  return value;
}

}  // namespace

Result<std::shared_ptr<std::byte[]>> WeightArena::Allocate(size_t size_bytes) {
  const size_t size = (size_bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
  if (chunk_ == nullptr || chunk_->bytes().size() - used_bytes_ < size) {
    ASSIGN_OR_RETURN(HostMemory memory, HostMemory::Map(std::max(size, kChunkBytes)));
    chunk_ = std::make_shared<HostMemory>(std::move(memory));
    used_bytes_ = 0;
  }
  std::shared_ptr<std::byte[]> data(chunk_, chunk_->bytes().data() + used_bytes_);
  used_bytes_ += size;
  return data;
}

Result<std::unique_ptr<PackedWeight>> PackedWeight::Pack(const MatrixView& view,
                                                         WeightArena& arena) {
  RETURN_IF_ERROR(CheckMatrix(view));
  const PanelFormat format = FormatOf(view.type);
  const PanelUnit unit = UnitOf(format);
  const TensorTypeTraits traits = TraitsOf(view.type);
  const size_t unit_count = view.cols / unit.k;  // a row's, and a panel's
  const size_t panel_bytes = unit_count * unit.bytes;
  const size_t panel_count = (size_t{view.rows} + kPanelOutputs - 1) / kPanelOutputs;
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte[]> data, arena.Allocate(panel_count * panel_bytes));

  for (size_t row = 0; row < view.rows; ++row) {
    const std::byte* source = view.bytes.data() + row * unit_count * traits.group_bytes;
    std::byte* target = data.get() + row / kPanelOutputs * panel_bytes;
    const uint32_t output = row % kPanelOutputs;
    for (size_t i = 0; i < unit_count; ++i) {
      if (unit.k == 1) {
        std::memcpy(target + output * traits.group_bytes, source, traits.group_bytes);
      } else {
        PackGroup(format, source, output, target);
      }
      source += traits.group_bytes;
      target += unit.bytes;
    }
  }
  return std::unique_ptr<PackedWeight>(new PackedWeight(view, std::move(data), panel_bytes));
}

void PackedWeight::ReadRow(uint32_t row, float* out) const {
  CHECK(row < rows_);
  const PanelUnit unit = UnitOf(format_);
  const uint32_t output = row % kPanelOutputs;
  const std::byte* source = panel(row / kPanelOutputs);
  for (uint32_t k = 0; k < cols_; k += unit.k, source += unit.bytes) {
    if (unit.k == 1) {
      out[k] = ReadElement(format_, source + output * (unit.bytes / kPanelOutputs));
    } else {
      ReadGroup(format_, source, output, out + k);
    }
  }
}

}  // namespace cairn
