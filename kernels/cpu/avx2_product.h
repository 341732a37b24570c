// The loop nest of y = x * W^T in AVX2: panels, blocks of rows, chunks of k, tiles of rows. What a
// tile does is the Kernel's affair.
//
// A block of few rows is computed straight from the packed panel; for more rows a chunk of the
// panel is first unpacked into the first-level cache, once for all of them. Both ways must give the
// same bits, and so must every height of tile: sums live in memory as float32 between chunks, and
// each output's terms are added in increasing order of k.
//
// A Kernel has
//   kFormat                the panel's format
//   kDirectRowsMax         blocks up to this many rows are computed from the packed panel
//   kChunkBytes            size of an unpacked chunk
//   kChunkUnits            units of k (UnitOf) in a chunk
//   Rows                   its view of the activations: Rows(const Activations&, row, unit)
//   Unpack(panel, units, chunk) -> pointer to the unpacked units
//   kDirectTiles, kTiles   arrays of Tile; entry i computes i + 1 rows. sums[row][output] += ...
//                          over `units` units.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/avx2.h"

namespace cairn {

// Rows that share an unpacked panel. Their activations should fit the second-level cache.
inline constexpr uint32_t kPanelRowBlock = 256;

template <class Rows>
using PanelTile = void (*)(const std::byte* weights, uint32_t units, const Rows& rows, float* sums);

// Packed weights that will be needed when all tiles of a chunk are done: each tile fetches a part
// of them first, so that memory works while the tiles compute.
struct ComingWeights {
  const std::byte* begin;
  size_t bytes;

  // The part of one in `tile_count` tiles. Always inlined: a compiler may drop calls of a function
  // that does nothing but this.
  AVX2_INLINE void Prefetch(uint32_t tile, uint32_t tile_count) const {
    const size_t end = bytes * (tile + 1) / tile_count;
    for (size_t at = bytes * tile / tile_count / 64 * 64; at < end; at += 64) {
      __builtin_prefetch(begin + at);
    }
  }
};

// One panel's products with a block of rows: what its tiles work on.
struct PanelBlock {
  const Activations& x;
  uint32_t first_row;
  uint32_t row_count;
  float* sums;  // [row_count][kPanelOutputs]
  float* y;     // [first_row][first output of the panel]
  size_t y_stride;
  size_t y_bytes;  // of the outputs that exist: the last panel may be padded

  void Store(uint32_t row_begin, uint32_t row_end) const {
    constexpr size_t kWholeBytes = kPanelOutputs * sizeof(float);
    for (uint32_t row = row_begin; row < row_end; ++row) {
      const float* const from = sums + row * kPanelOutputs;
      if (y_bytes == kWholeBytes) {
        std::memcpy(y + row * y_stride, from, kWholeBytes);  // inlined: the size is known here
      } else {
        std::memcpy(y + row * y_stride, from, y_bytes);
      }
    }
  }
};

// Runs tiles over all rows of the block in heights that differ by one at most: 8 rows are 4 + 4
// where the highest tile has 6, not 6 + 2. Behind the last chunk each tile's sums go to y at once,
// since stores in one burst at the end would wait for memory.
template <class Rows, size_t kHeightMax>
void RunTiles(const std::array<PanelTile<Rows>, kHeightMax>& tiles, const std::byte* weights,
              uint32_t first_unit, uint32_t units, bool is_last, const ComingWeights& coming,
              const PanelBlock& block) {
  const uint32_t tile_count = (block.row_count + kHeightMax - 1) / kHeightMax;
  for (uint32_t tile = 0; tile < tile_count; ++tile) {
    const uint32_t begin = block.row_count * tile / tile_count;
    const uint32_t end = block.row_count * (tile + 1) / tile_count;
    if (tile_count > 1) coming.Prefetch(tile, tile_count);
    tiles[end - begin - 1](weights, units, Rows(block.x, block.first_row + begin, first_unit),
                           block.sums + begin * kPanelOutputs);
    if (is_last) block.Store(begin, end);
  }
}

template <class Kernel>
void ProductByPanels(const PanelProductArgs& args) {
  using Rows = typename Kernel::Rows;
  constexpr PanelUnit kUnit = UnitOf(Kernel::kFormat);
  alignas(64) float sums[kPanelRowBlock * kPanelOutputs];
  alignas(64) std::byte chunk[Kernel::kChunkBytes];
  const uint32_t outputs = args.weight->rows();
  const uint32_t unit_count = args.weight->cols() / kUnit.k;
  // What follows `units` units from `begin` on in this share, as much again at most.
  const std::byte* const share_end = args.weight->panel(args.panel_end);
  const auto coming = [&](const std::byte* begin, uint32_t units) {
    const size_t bytes = size_t{units} * kUnit.bytes;
    return ComingWeights{begin + bytes, std::min<size_t>(bytes, share_end - (begin + bytes))};
  };

  for (uint32_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const std::byte* const packed = args.weight->panel(panel);
    const uint32_t first_output = panel * kPanelOutputs;
    for (uint32_t row = args.row_begin; row < args.row_end; row += kPanelRowBlock) {
      const PanelBlock block = {
          .x = args.x,
          .first_row = row,
          .row_count = std::min(kPanelRowBlock, args.row_end - row),
          .sums = sums,
          .y = args.y + size_t{row} * outputs + first_output,
          .y_stride = outputs,
          .y_bytes = std::min(kPanelOutputs, outputs - first_output) * sizeof(float)};
      std::memset(sums, 0, size_t{block.row_count} * kPanelOutputs * sizeof(float));
      if (block.row_count <= Kernel::kDirectRowsMax) {
        RunTiles<Rows>(Kernel::kDirectTiles, packed, 0, unit_count, true,
                       coming(packed, unit_count), block);
        continue;
      }
      for (uint32_t unit = 0; unit < unit_count; unit += Kernel::kChunkUnits) {
        const uint32_t units = std::min<uint32_t>(Kernel::kChunkUnits, unit_count - unit);
        const std::byte* const source = packed + size_t{unit} * kUnit.bytes;
        const std::byte* const unpacked = Kernel::Unpack(source, units, chunk);
        RunTiles<Rows>(Kernel::kTiles, unpacked, unit, units, unit + units == unit_count,
                       coming(source, units), block);
      }
    }
  }
}

}  // namespace cairn
