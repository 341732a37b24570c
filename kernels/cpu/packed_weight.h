// A weight matrix in the layout that the CPU kernels read: panels of kPanelOutputs outputs, each
// contiguous over its k, with the scales of a group in front of its 32 k. The last panel is padded
// with zeros. A format belongs to a tensor type, not to an instruction set or a compute mode:
//
//   kF32, kF16, kBF16  [k][output]                                      one element each
//   kQ8Pairs           f16 d[output],                 int8 [k / 2][output][k % 2]
//   kQ4Quads           f16 d[output],                 nibbles
//   kQ4QuadsMin        f16 d[output], f16 m[output],  nibbles
//
// The nibbles of a group: byte [quad][output][t] holds q of k = 4 quad + t in its low half and q of
// k = 16 + 4 quad + t in its high half, for quad < 4 and t < 4. A 32-byte vector is then 8 outputs
// of 4 consecutive k, which is what byte dot products (vpmaddubsw, vpdpbusd) take.
// Threads: immutable after Pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/ops.h"

namespace cairn {

inline constexpr uint32_t kPanelOutputs = 16;

enum class PanelFormat : uint8_t { kF32, kF16, kBF16, kQ8Pairs, kQ4Quads, kQ4QuadsMin };

constexpr PanelFormat FormatOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return PanelFormat::kF32;
    case TensorType::kF16:
      return PanelFormat::kF16;
    case TensorType::kBF16:
      return PanelFormat::kBF16;
    case TensorType::kQ8_0:
      return PanelFormat::kQ8Pairs;
    case TensorType::kQ4_0:
      return PanelFormat::kQ4Quads;
    case TensorType::kQ4_1:
      return PanelFormat::kQ4QuadsMin;
  }
  return PanelFormat::kF32;
}

// The unit of k in a format, and its bytes for all outputs of a panel.
struct PanelUnit {
  uint32_t k;
  uint32_t bytes;
};
constexpr PanelUnit UnitOf(PanelFormat format) {
  constexpr uint32_t kScaleBytes = kPanelOutputs * 2;
  switch (format) {
    case PanelFormat::kF32:
      return {1, kPanelOutputs * 4};
    case PanelFormat::kF16:
    case PanelFormat::kBF16:
      return {1, kPanelOutputs * 2};
    case PanelFormat::kQ8Pairs:
      return {kQuantGroup, kScaleBytes + kPanelOutputs * kQuantGroup};
    case PanelFormat::kQ4Quads:
      return {kQuantGroup, kScaleBytes + kPanelOutputs * kQuantGroup / 2};
    case PanelFormat::kQ4QuadsMin:
      return {kQuantGroup, 2 * kScaleBytes + kPanelOutputs * kQuantGroup / 2};
  }
  return {1, 0};
}

// Gives weights their memory, many to a huge page. A chunk lives as long as a weight in it.
class WeightArena {
 public:
  // Zero-filled, aligned to 64 bytes.
  Result<std::shared_ptr<std::byte[]>> Allocate(size_t size_bytes);

 private:
  std::shared_ptr<HostMemory> chunk_;
  size_t used_bytes_ = 0;
};

class PackedWeight final : public Weight {
 public:
  // kInvalidArgument when the view's shape and bytes do not fit together.
  static Result<std::unique_ptr<PackedWeight>> Pack(const MatrixView& view, WeightArena& arena);

  uint32_t rows() const override { return rows_; }
  uint32_t cols() const override { return cols_; }
  size_t size_bytes() const override { return panel_count() * panel_bytes_; }

  PanelFormat format() const { return format_; }
  size_t panel_count() const { return (size_t{rows_} + kPanelOutputs - 1) / kPanelOutputs; }
  const std::byte* panel(size_t index) const { return data_.get() + index * panel_bytes_; }

  // out[0 .. cols) = row `row`, as float32: the values of the file's format to the last bit, except
  // that a Q4 value is rounded once more than its formula in real numbers.
  void ReadRow(uint32_t row, float* out) const;

 private:
  PackedWeight(const MatrixView& view, std::shared_ptr<std::byte[]> data, size_t panel_bytes)
      : rows_(view.rows),
        cols_(view.cols),
        format_(FormatOf(view.type)),
        panel_bytes_(panel_bytes),
        data_(std::move(data)) {}

  const uint32_t rows_;
  const uint32_t cols_;
  const PanelFormat format_;
  const size_t panel_bytes_;
  const std::shared_ptr<std::byte[]> data_;
};

}  // namespace cairn
