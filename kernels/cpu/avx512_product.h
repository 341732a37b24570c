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
};
template <class Rows>
using Avx512Tile = void (*)(const Avx512TileArgs<Rows>& args);

// All rows of the share with one panel or two, in tiles whose heights differ by one at most.
template <class Rows, size_t kHeightMax>
void RunAvx512Tiles(const std::array<Avx512Tile<Rows>, kHeightMax>& tiles,
                    const PanelProductArgs& args, Avx512TileArgs<Rows> tile_args,
                    const ComingWeights& coming) {
  const uint32_t row_count = args.row_end - args.row_begin;
  const uint32_t tile_count = (row_count + kHeightMax - 1) / kHeightMax;
  float* const y = tile_args.y;
  for (uint32_t tile = 0; tile < tile_count; ++tile) {
    const uint32_t begin = row_count * tile / tile_count;
    const uint32_t end = row_count * (tile + 1) / tile_count;
    if (tile_count > 1) coming.Prefetch(tile, tile_count);
    tile_args.rows = Rows(args.x, args.row_begin + begin);
    tile_args.y = y + begin * tile_args.y_stride;
    tiles[end - begin - 1](tile_args);
  }
}

template <class Kernel>
void ProductByAvx512Tiles(const PanelProductArgs& args) {
  using Rows = typename Kernel::Rows;
  constexpr PanelUnit kUnit = UnitOf(Kernel::kFormat);
  const PackedWeight& weight = *args.weight;
  const uint32_t outputs = weight.rows();
  const uint32_t units = weight.cols() / kUnit.k;
  const size_t panel_bytes = size_t{units} * kUnit.bytes;
  const bool in_pairs = args.row_end - args.row_begin > Kernel::kOnePanelTiles.size();
  const std::byte* const share_end = weight.panel(args.panel_end);
  for (uint32_t panel = args.panel_begin; panel < args.panel_end;) {
    const uint32_t width = in_pairs && args.panel_end - panel >= 2 ? 2 : 1;
    const uint32_t end_output = std::min((panel + width) * kPanelOutputs, outputs);
    const uint32_t last_outputs = end_output - (panel + width - 1) * kPanelOutputs;
    const std::byte* const next = weight.panel(panel + width);
    const ComingWeights coming = {next, std::min<size_t>(width * panel_bytes, share_end - next)};
    const Avx512TileArgs<Rows> tile_args = {
        .weights = weight.panel(panel),
        .panel_bytes = panel_bytes,
        .units = units,
        .rows = Rows(args.x, args.row_begin),
        .y = args.y + size_t{args.row_begin} * outputs + panel * kPanelOutputs,
        .y_stride = outputs,
        .last_lanes = static_cast<__mmask16>((1u << last_outputs) - 1)};
    if (width == 2) {
      RunAvx512Tiles<Rows>(Kernel::kTwoPanelTiles, args, tile_args, coming);
    } else {
      RunAvx512Tiles<Rows>(Kernel::kOnePanelTiles, args, tile_args, coming);
    }
    panel += width;
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
