// Products in plain C++, for processors without a better instruction set. Same layouts, same
// integers and same order of additions as the others; a rounding more where they fuse.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/half.h"
#include "kernels/cpu/portable.h"

namespace cairn {
namespace {

constexpr uint32_t kRowBlock = 64;   // rows that share an unpacked unit
constexpr uint32_t kFloatUnit = 32;  // k of a float panel that are unpacked together

uint16_t LoadHalf(const std::byte* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

// Up to 32 k of a panel, unpacked: floats, or the integers and scales of one group.
struct UnpackedUnit {
  float floats[kFloatUnit][kPanelOutputs];
  int16_t quants[kQuantGroup][kPanelOutputs];
  float scale[kPanelOutputs];
  float offset[kPanelOutputs];
};

void UnpackFloats(PanelFormat format, const std::byte* source, uint32_t k_count,
                  UnpackedUnit& unit) {
  for (uint32_t k = 0; k < k_count; ++k) {
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      const size_t index = size_t{k} * kPanelOutputs + output;
      float& value = unit.floats[k][output];
      if (format == PanelFormat::kF32) {
        std::memcpy(&value, source + index * 4, sizeof(value));
      } else {
        const uint16_t half = LoadHalf(source + index * 2);
        value = format == PanelFormat::kF16 ? HalfToFloat(half) : BfloatToFloat(half);
      }
    }
  }
}

void UnpackGroup(PanelFormat format, const std::byte* group, UnpackedUnit& unit) {
  for (uint32_t output = 0; output < kPanelOutputs; ++output) {
    unit.scale[output] = HalfToFloat(LoadHalf(group + output * 2));
    unit.offset[output] = format == PanelFormat::kQ8Pairs ? 0.0f
                          : format == PanelFormat::kQ4Quads
                              ? -8.0f * unit.scale[output]
                              : HalfToFloat(LoadHalf(group + (kPanelOutputs + output) * 2));
  }
  const std::byte* const quants =
      group + kPanelOutputs * (format == PanelFormat::kQ4QuadsMin ? 4 : 2);
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      if (format == PanelFormat::kQ8Pairs) {
        unit.quants[k][output] =
            int16_t{std::to_integer<int8_t>(quants[(k / 2 * kPanelOutputs + output) * 2 + k % 2])};
      } else {
        const std::byte both = quants[(k % 16 / 4 * kPanelOutputs + output) * 4 + k % 4];
        unit.quants[k][output] = static_cast<int16_t>(k < 16 ? both & std::byte{15} : both >> 4);
      }
    }
  }
}

// sums[output] += x . w over k_count k, one product after the other.
void AddFloats(const UnpackedUnit& unit, const float* x, uint32_t k_count, float* sums) {
  for (uint32_t k = 0; k < k_count; ++k) {
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      sums[output] += x[k] * unit.floats[k][output];
    }
  }
}

// The 32 integers of a group, whatever their form.
void LoadQuants(const Activations& x, size_t group, int16_t* quants) {
  if (x.form == ActivationForm::kInt16) {
    std::memcpy(quants, static_cast<const int16_t*>(x.values) + group * kQuantGroup,
                kQuantGroup * sizeof(int16_t));
    return;
  }
  const bool is_pair = x.form == ActivationForm::kInt8Pair;
  const int8_t* const bytes =
      static_cast<const int8_t*>(x.values) + group * kQuantGroup * (is_pair ? 2 : 1);
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    quants[k] = is_pair ? static_cast<int16_t>(256 * bytes[k] + bytes[kQuantGroup + k]) : bytes[k];
  }
}

void AddGroup(const UnpackedUnit& unit, const int16_t* x, const GroupScale& scale, float* sums) {
  int32_t totals[kPanelOutputs] = {};
  for (uint32_t k = 0; k < kQuantGroup; ++k) {
    for (uint32_t output = 0; output < kPanelOutputs; ++output) {
      totals[output] += int32_t{x[k]} * unit.quants[k][output];
    }
  }
  for (uint32_t output = 0; output < kPanelOutputs; ++output) {
    sums[output] += unit.offset[output] * scale.sum;
    sums[output] += static_cast<float>(totals[output]) * (unit.scale[output] * scale.scale);
  }
}

// sums[row][output] of one panel for rows [row, row + row_count).
void SumBlock(const PanelProductArgs& args, const std::byte* panel, uint32_t first_row,
              uint32_t row_count, float (*sums)[kPanelOutputs]) {
  const PanelFormat format = args.weight->format();
  const PanelUnit packed_unit = UnitOf(format);
  const uint32_t cols = args.weight->cols();
  UnpackedUnit unit;
  for (uint32_t k = 0; k < cols; k += kQuantGroup) {
    const std::byte* const source = panel + size_t{k / packed_unit.k} * packed_unit.bytes;
    if (packed_unit.k == 1) {
      const uint32_t k_count = std::min(kFloatUnit, cols - k);
      UnpackFloats(format, source, k_count, unit);
      for (uint32_t i = 0; i < row_count; ++i) {
        const float* const x =
            static_cast<const float*>(args.x.values) + (size_t{first_row} + i) * cols + k;
        AddFloats(unit, x, k_count, sums[i]);
      }
      continue;
    }
    UnpackGroup(format, source, unit);
    for (uint32_t i = 0; i < row_count; ++i) {
      const size_t group = (size_t{first_row} + i) * (cols / kQuantGroup) + k / kQuantGroup;
      int16_t quants[kQuantGroup];
      LoadQuants(args.x, group, quants);
      AddGroup(unit, quants, args.x.scales[group], sums[i]);
    }
  }
}

}  // namespace

void PanelProductPortable(const PanelProductArgs& args) {
  const uint32_t outputs = args.weight->rows();
  for (uint32_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const uint32_t first_output = panel * kPanelOutputs;
    const uint32_t stored = std::min(kPanelOutputs, outputs - first_output);
    for (uint32_t row = args.row_begin; row < args.row_end; row += kRowBlock) {
      const uint32_t row_count = std::min(kRowBlock, args.row_end - row);
      float sums[kRowBlock][kPanelOutputs] = {};
      SumBlock(args, args.weight->panel(panel), row, row_count, sums);
      for (uint32_t i = 0; i < row_count; ++i) {
        std::copy_n(sums[i], stored, args.y + (size_t{row} + i) * outputs + first_output);
      }
    }
  }
}

}  // namespace cairn
