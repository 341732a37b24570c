// How weights and activations lie in the device's memory for products on tensor cores
// (mma m16n8k16: a tile of 16 outputs times 8 rows, 16 k at a time).
//
// A weight matrix is cut into panels of 16 outputs, and a panel into blocks of 64 k. A block holds
// what each lane of a warp multiplies, in the order in which it loads it, then the scales:
//
//   panel = [block of 64 k], block = [codes: lanes in order, 16 bytes each, again and again |
//   scales]
//
// Lane (g, t) = (lane / 4, lane % 4) has outputs g and g + 8 of the panel, and of each group of 32
// k the elements 8 t .. 8 t + 7. The hardware's k is a permutation of ours, the same for weights
// and activations: element 8 t + 4 s + 2 r + e is half e of register r in step s.
//
// An activation is one whole number x = hi * 2048 + lo times the scale of its (row, group of 32 k),
// hi and lo float16 of at most 11 bits. Sums of products with quantised weights are then whole
// numbers below 2^24 inside a group, hence exact in whatever order the hardware adds.
//
//   activations = [row][group]{hi[32], lo[32]} float16, scales = [row][group]{scale, scale * sum x}
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace cairn::cuda {

inline constexpr uint32_t kPanelOutputs = 16;
inline constexpr uint32_t kBlockCols = 64;
inline constexpr uint32_t kBlockGroups = kBlockCols / kQuantGroup;
// The blocks of a panel are summed in so many parts, and the parts' sums in increasing order.
inline constexpr uint32_t kSplits = 8;

constexpr uint32_t CeilDivide(uint32_t value, uint32_t by) { return (value + by - 1) / by; }
constexpr uint32_t SplitBegin(uint32_t split, uint32_t block_count) {
  return static_cast<uint32_t>(uint64_t{split} * block_count / kSplits);
}

// Bytes of a block's codes and scales. Floats of 16 bits have one scale an output instead.
constexpr uint32_t CodeBytes(TensorType type) {
  return type == TensorType::kQ4_0 || type == TensorType::kQ4_1 ? 512
         : type == TensorType::kQ8_0                            ? 1024
                                                                : 2048;
}
constexpr uint32_t ScaleBytes(TensorType type) {
  return type == TensorType::kQ4_1                                ? 128
         : type == TensorType::kQ4_0 || type == TensorType::kQ8_0 ? 64
                                                                  : 0;
}
constexpr uint32_t BlockBytes(TensorType type) { return CodeBytes(type) + ScaleBytes(type); }

// A weight matrix as kernels take it. BF16 is kept as F16 with a power of two for each output.
struct PackedMatrix {
  TensorType type;  // kF32: row after row as the file has it; else panels
  uint32_t rows;
  uint32_t cols;
  uint32_t block_count;  // of a panel
  const std::byte* data;
  const float* output_scales;  // kF16: [panels * 16]
};

// Products that share their activations run as one kernel, if their weights have one type.
inline constexpr uint32_t kProductsMax = 4;
struct ProductOutput {
  PackedMatrix weight;
  float* y;              // [row_count, weight.rows]
  uint32_t first_block;  // of the grid; UINT32_MAX: there is no such product
};

inline constexpr float kActivationLimit = 2047.0f * 2048.0f;
// A group whose largest magnitude is below counts as zero.
inline constexpr float kActivationMin = 1e-30f;
inline constexpr uint32_t kActivationGroupHalves = 2 * kQuantGroup;

struct ActivationScale {
  float scale;
  float sum;  // of the group's activations
};

// `group_count` is even: two a block.
struct SplitActivations {
  uint16_t* halves;         // [row][group_count][kActivationGroupHalves] float16
  ActivationScale* scales;  // [row][group_count]
  uint32_t row_count;
  uint32_t group_count;
};

}  // namespace cairn::cuda
