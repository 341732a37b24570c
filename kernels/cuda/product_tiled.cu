// Products of many rows: 64 outputs times 64 rows a block. Activations come through shared memory,
// two stages of cp.async; weights go from memory to registers, since each warp has its own.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_tile.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kTileRows = 64;
constexpr uint32_t kWarpPanels = 2;  // warps are arranged two by two
constexpr uint32_t kWarpTiles = 4;   // of 8 rows
constexpr uint32_t kRowBytes = kBlockGroups * kActivationGroupHalves * 2;
constexpr uint32_t kVectorBytes = 16;

struct Stage {
  alignas(16) std::byte halves[kTileRows][kRowBytes];
  ActivationScale scales[kTileRows][kBlockGroups];
};
static_assert(sizeof(ActivationScale) * kBlockGroups == kVectorBytes);

// Where the vector of a (row, group, hi or lo, t) lies in a row: every second row has hi and lo
// swapped, so that the lanes of eight that load together meet no bank twice.
__device__ uint32_t VectorAt(uint32_t row, uint32_t group, uint32_t part, uint32_t t) {
  return (group * 8 + ((part ^ (row & 1)) * 4) + t) * kVectorBytes;
}

// Begins to copy one block of 64 k of the tile's rows; rows that are not there become zero.
__device__ void FetchActivations(const SplitActivations& x, uint32_t first_row, uint32_t block,
                                 Stage& stage) {
  constexpr uint32_t kRowVectors = kRowBytes / kVectorBytes;
  for (uint32_t i = threadIdx.x; i < kTileRows * kRowVectors; i += kThreads) {
    const uint32_t row = i / kRowVectors, vector = i % kRowVectors;
    const bool is_there = first_row + row < x.row_count;
    const size_t source =
        (size_t{is_there ? first_row + row : 0} * x.group_count + size_t{block} * kBlockGroups) *
        kActivationGroupHalves;
    gpu::CopyAsync16(&stage.halves[row][VectorAt(row, vector / 8, vector / 4 % 2, vector % 4)],
                     x.halves + source + vector * 8, is_there);
  }
  for (uint32_t row = threadIdx.x; row < kTileRows; row += kThreads) {
    const bool is_there = first_row + row < x.row_count;
    const size_t source =
        size_t{is_there ? first_row + row : 0} * x.group_count + size_t{block} * kBlockGroups;
    gpu::CopyAsync16(&stage.scales[row][0], x.scales + source, is_there);
  }
  gpu::CommitCopies();
}

struct WarpSums {
  float partial[kWarpPanels][kWarpTiles][4] = {};
  float total[kWarpPanels][kWarpTiles][4] = {};

  // One of the parts of k is done.
  __device__ void Fold() {
#pragma unroll
    for (uint32_t panel = 0; panel < kWarpPanels; ++panel) {
#pragma unroll
      for (uint32_t tile = 0; tile < kWarpTiles; ++tile) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          total[panel][tile][i] += partial[panel][tile][i];
          partial[panel][tile][i] = 0;
        }
      }
    }
  }
};

template <TensorType kType>
__device__ void MultiplyStage(const Stage& stage, const PanelBlock<kType> (&blocks)[kWarpPanels],
                              const float (&output_scales)[kWarpPanels][2], uint32_t warp_row,
                              WarpSums& sums) {
  const uint32_t g = threadIdx.x % gpu::kWarpSize / 4, t = threadIdx.x % 4;
#pragma unroll
  for (uint32_t group = 0; group < kBlockGroups; ++group) {
    uint32_t a[kWarpPanels][2][4];
#pragma unroll
    for (uint32_t panel = 0; panel < kWarpPanels; ++panel) blocks[panel].Fragments(group, a[panel]);
#pragma unroll
    for (uint32_t tile = 0; tile < kWarpTiles; ++tile) {
      const uint32_t row = warp_row + 8 * tile;
      const std::byte* const halves = stage.halves[row + g];
      const ActivationFragment b = {
          *reinterpret_cast<const uint4*>(halves + VectorAt(row + g, group, 0, t)),
          *reinterpret_cast<const uint4*>(halves + VectorAt(row + g, group, 1, t))};
      const ActivationScale scales[2] = {stage.scales[row + 2 * t][group],
                                         stage.scales[row + 2 * t + 1][group]};
#pragma unroll
      for (uint32_t panel = 0; panel < kWarpPanels; ++panel) {
        AddGroup(blocks[panel], group, a[panel], output_scales[panel], b, scales,
                 sums.partial[panel][tile]);
      }
    }
  }
}

__device__ void StoreSums(const ProductOutput& out, uint32_t row_count, uint32_t first_panel,
                          uint32_t first_row, const WarpSums& sums) {
  const uint32_t g = threadIdx.x % gpu::kWarpSize / 4, t = threadIdx.x % 4;
#pragma unroll
  for (uint32_t panel = 0; panel < kWarpPanels; ++panel) {
#pragma unroll
    for (uint32_t tile = 0; tile < kWarpTiles; ++tile) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t output = (first_panel + panel) * kPanelOutputs + g + 8 * (i / 2);
        const uint32_t row = first_row + 8 * tile + 2 * t + i % 2;
        if (output >= out.weight.rows || row >= row_count) continue;
        out.y[size_t{row} * out.weight.rows + output] = sums.total[panel][tile][i];
      }
    }
  }
}

template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 2) TiledKernel(ProductParams params) {
  GPU_SHARED(stages, Stage[2]);
  const ProductOutput out = OutputOf(params, blockIdx.y);
  const PackedMatrix& weight = out.weight;
  const uint32_t warp = threadIdx.x / gpu::kWarpSize, lane = threadIdx.x % gpu::kWarpSize;
  const uint32_t first_row = blockIdx.x * kTileRows;
  const uint32_t warp_row = warp % 2 * (kTileRows / 2);
  const uint32_t first_panel =
      (blockIdx.y - out.first_block) * kTilePanels + warp / 2 * kWarpPanels;
  const uint32_t last_panel = CeilDivide(weight.rows, kPanelOutputs) - 1;

  // A panel behind the last is computed as the last, and its sums are not stored.
  const std::byte* panels[kWarpPanels];
  float output_scales[kWarpPanels][2] = {};
  PanelBlock<kType> blocks[kWarpPanels];
#pragma unroll
  for (uint32_t i = 0; i < kWarpPanels; ++i) {
    const uint32_t panel = first_panel + i < last_panel ? first_panel + i : last_panel;
    panels[i] = weight.data + size_t{panel} * weight.block_count * BlockBytes(kType);
    if constexpr (kType == TensorType::kF16) {
      output_scales[i][0] = __ldg(weight.output_scales + panel * kPanelOutputs + lane / 4);
      output_scales[i][1] = __ldg(weight.output_scales + panel * kPanelOutputs + lane / 4 + 8);
    }
    blocks[i].Load(panels[i], lane);
  }

  WarpSums sums;
  FetchActivations(params.x, first_row, 0, stages[0]);
  uint32_t split = 0;
  for (uint32_t block = 0; block < weight.block_count; ++block) {
    const bool has_next = block + 1 < weight.block_count;
    PanelBlock<kType> next[kWarpPanels];
    if (has_next) {
      FetchActivations(params.x, first_row, block + 1, stages[(block + 1) % 2]);
#pragma unroll
      for (uint32_t i = 0; i < kWarpPanels; ++i) {
        next[i].Load(panels[i] + size_t{block + 1} * BlockBytes(kType), lane);
      }
      gpu::WaitCopies<1>();
    } else {
      gpu::WaitCopies<0>();
    }
    __syncthreads();
    MultiplyStage(stages[block % 2], blocks, output_scales, warp_row, sums);
    while (SplitBegin(split + 1, weight.block_count) <= block) ++split;
    if (SplitBegin(split + 1, weight.block_count) == block + 1) sums.Fold();
    __syncthreads();  // the stage is filled again in the next round
    if (has_next) {
#pragma unroll
      for (uint32_t i = 0; i < kWarpPanels; ++i) blocks[i] = next[i];
    }
  }
  StoreSums(out, params.x.row_count, first_panel, first_row + warp_row, sums);
}

template <TensorType kType>
cudaError_t Launch(const ProductParams& params, uint32_t tile_count, cudaStream_t stream) {
  const dim3 grid(CeilDivide(params.x.row_count, kTileRows), tile_count);
  return GPU_LAUNCH(&TiledKernel<kType>, grid, dim3(kThreads), 0, stream, params);
}

}  // namespace

cudaError_t LaunchTiledProducts(const ProductParams& params, uint32_t tile_count,
                                cudaStream_t stream) {
  switch (params.outputs[0].weight.type) {
    case TensorType::kQ4_0:
      return Launch<TensorType::kQ4_0>(params, tile_count, stream);
    case TensorType::kQ4_1:
      return Launch<TensorType::kQ4_1>(params, tile_count, stream);
    case TensorType::kQ8_0:
      return Launch<TensorType::kQ8_0>(params, tile_count, stream);
    case TensorType::kF16:
      return Launch<TensorType::kF16>(params, tile_count, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cairn::cuda
