// The loop nest of y = x * W^T in AVX-512: panels, tiles of rows. A tile computes its rows over all
// of k straight from the packed panels, with its sums in registers. There are 32 of those, of 16
// outputs each: enough sums that unpacking panels first, as avx2_product.h does, would save
// nothing.
//
// For few rows a tile takes one panel, and all the rows if it can: weights are then a stream out of
// memory that should be read once, in order. For more rows a tile takes two panels and fewer rows,
// and each activation that it loads serves twice.
//
// A Kernel has
//   kFormat          the panel's format
//   Rows             its view of the activations: Rows(const Activations&, row)
//   kOnePanelTiles   array of Avx512Tile; entry i computes i + 1 rows with one panel
//   kTwoPanelTiles   the same with two panels
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/avx512.h"

namespace cairn {

// Memory that a tile fetches while it computes, a part with each unit of k.
class PacedPrefetch {
 public:
  PacedPrefetch(const std::byte* begin, size_t step_bytes)
      : at_(begin), goal_(begin), step_bytes_(step_bytes) {}

  AVX512_INLINE void Step() {
    goal_ += step_bytes_;
    for (; at_ < goal_; at_ += 64) __builtin_prefetch(at_);
  }

 private:
  const std::byte* at_;
  const std::byte* goal_;
  size_t step_bytes_;
};

// A tile's outputs are written only as far as they exist: the last panel may be padded.
template <class Rows>
struct Avx512TileArgs {
  const std::byte* weights;
  size_t panel_bytes;
  uint32_t units;  // of k
  Rows rows;
  float* y;
  size_t y_stride;
  __mmask16 last_lanes;  // of the tile's last panel
  PacedPrefetch coming;
};
template <class Rows>
using Avx512Tile = void (*)(const Avx512TileArgs<Rows>& args);

// All rows of the share with the panels [panel, panel + width), in tiles whose heights differ by
// one at most. A lone tile fetches the weights some way ahead of those that it reads; several fetch
// those of the next panels, a part each.
template <class Kernel, size_t kHeightMax>
void RunAvx512Tiles(const std::array<Avx512Tile<typename Kernel::Rows>, kHeightMax>& tiles,
                    const PanelProductArgs& args, uint32_t panel, uint32_t width) {
  using Rows = typename Kernel::Rows;
  constexpr PanelUnit kUnit = UnitOf(Kernel::kFormat);
  const PackedWeight& weight = *args.weight;
  const uint32_t outputs = weight.rows();
  const uint32_t units = weight.cols() / kUnit.k;
  const uint32_t first_output = panel * kPanelOutputs;
  const uint32_t last_outputs =
      std::min(width * kPanelOutputs, outputs - first_output) - (width - 1) * kPanelOutputs;
  const uint32_t row_count = args.row_end - args.row_begin;
  const uint32_t tile_count = (row_count + kHeightMax - 1) / kHeightMax;
  const std::byte* const weights = weight.panel(panel);
  const std::byte* const next = weight.panel(panel + width);
  const size_t next_bytes = std::min<size_t>(next - weights, weight.panel(args.panel_end) - next);
  for (uint32_t tile = 0; tile < tile_count; ++tile) {
    const uint32_t row = args.row_begin + row_count * tile / tile_count;
    const uint32_t row_end = args.row_begin + row_count * (tile + 1) / tile_count;
    const PacedPrefetch coming = tile_count == 1
                                     ? PacedPrefetch(weights + kPrefetchBytes, kUnit.bytes)
                                     : PacedPrefetch(next + next_bytes * tile / tile_count,
                                                     next_bytes / (size_t{tile_count} * units));
    tiles[row_end - row - 1]({.weights = weights,
                              .panel_bytes = size_t{units} * kUnit.bytes,
                              .units = units,
                              .rows = Rows(args.x, row),
                              .y = args.y + size_t{row} * outputs + first_output,
                              .y_stride = outputs,
                              .last_lanes = static_cast<__mmask16>((1u << last_outputs) - 1),
                              .coming = coming});
  }
}

template <class Kernel>
void ProductByAvx512Tiles(const PanelProductArgs& args) {
  const bool by_two = args.row_end - args.row_begin > Kernel::kOnePanelTiles.size();
  uint32_t panel = args.panel_begin;
  // Nothing before it could fetch the beginning of a share.
  if (!by_two) PacedPrefetch(args.weight->panel(panel), kPrefetchBytes).Step();
  while (by_two && args.panel_end - panel >= 2) {
    RunAvx512Tiles<Kernel>(Kernel::kTwoPanelTiles, args, panel, 2);
    panel += 2;
  }
  for (; panel < args.panel_end; ++panel) {
    RunAvx512Tiles<Kernel>(Kernel::kOnePanelTiles, args, panel, 1);
  }
}

// Writes a tile's sums to y.
template <int kRows, int kPanels, class Rows>
AVX512_INLINE void StoreTile(const Avx512TileArgs<Rows>& args,
                             const __m512 (&sums)[kRows][kPanels]) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    float* const y = args.y + row * args.y_stride;
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      const __mmask16 lanes = panel == kPanels - 1 ? args.last_lanes : __mmask16{0xffff};
      _mm512_mask_storeu_ps(y + panel * kPanelOutputs, lanes, sums[row][panel]);
    }
  }
}

}  // namespace cairn
