// Products of few rows, where the time is that of reading the weights: one block a panel, its warps
// share out k, and their sums meet in shared memory.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_tile.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = kSplits * gpu::kWarpSize;
// Blocks that are under way while one is multiplied: as many as registers allow.
template <TensorType kType>
constexpr uint32_t kDepth = kType == TensorType::kF16 ? 2 : 3;

// What a lane multiplies of one group for one tile of rows; rows that are not there are zero.
__device__ ActivationFragment LoadFragment(const SplitActivations& x, uint32_t row, uint32_t group,
                                           uint32_t t) {
  if (row >= x.row_count) return {};
  const size_t start = (size_t{row} * x.group_count + group) * kActivationGroupHalves;
  const uint4* const halves = reinterpret_cast<const uint4*>(x.halves + start);
  return {__ldg(halves + t), __ldg(halves + 4 + t)};
}

__device__ ActivationScale LoadScale(const SplitActivations& x, uint32_t row, uint32_t group) {
  if (row >= x.row_count) return {};
  const float2 pair =
      __ldg(reinterpret_cast<const float2*>(x.scales) + size_t{row} * x.group_count + group);
  return {pair.x, pair.y};
}

// All tiles of rows times one block of the panel.
template <TensorType kType, uint32_t kTiles>
__device__ void MultiplyBlock(const PanelBlock<kType>& block, const SplitActivations& x,
                              uint32_t first_row, uint32_t first_group,
                              const float (&output_scales)[2], float (&partial)[kTiles][4]) {
  const uint32_t g = threadIdx.x % gpu::kWarpSize / 4, t = threadIdx.x % 4;
#pragma unroll
  for (uint32_t group = 0; group < kBlockGroups; ++group) {
    uint32_t a[2][4];
    block.Fragments(group, a);
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      const uint32_t row = first_row + 8 * tile;
      const ActivationFragment b = LoadFragment(x, row + g, first_group + group, t);
      const ActivationScale scales[2] = {LoadScale(x, row + 2 * t, first_group + group),
                                         LoadScale(x, row + 2 * t + 1, first_group + group)};
      AddGroup(block, group, a, output_scales, b, scales, partial[tile]);
    }
  }
}

template <TensorType kType, uint32_t kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 2)
    FewRowsKernel(ProductParams params) {
  constexpr uint32_t kRows = 8 * kTiles;
  GPU_SHARED(sums, float[kSplits][kRows][kPanelOutputs + 1]);
  const ProductOutput out = OutputOf(params, blockIdx.x);
  const PackedMatrix& weight = out.weight;
  const uint32_t panel_index = blockIdx.x - out.first_block;
  const uint32_t warp = threadIdx.x / gpu::kWarpSize, lane = threadIdx.x % gpu::kWarpSize;
  const uint32_t g = lane / 4, t = lane % 4;
  const uint32_t first_output = panel_index * kPanelOutputs, first_row = blockIdx.y * kRows;
  const std::byte* const panel =
      weight.data + size_t{panel_index} * weight.block_count * BlockBytes(kType);
  float output_scales[2] = {};
  if constexpr (kType == TensorType::kF16) {
    output_scales[0] = __ldg(weight.output_scales + first_output + g);
    output_scales[1] = __ldg(weight.output_scales + first_output + g + 8);
  }

  const uint32_t begin = SplitBegin(warp, weight.block_count);
  const uint32_t end = SplitBegin(warp + 1, weight.block_count);
  PanelBlock<kType> ring[kDepth<kType>];
#pragma unroll
  for (uint32_t i = 0; i < kDepth<kType>; ++i) {
    if (begin + i < end) ring[i].Load(panel + size_t{begin + i} * BlockBytes(kType), lane);
  }
  float partial[kTiles][4] = {};
  for (uint32_t first = begin; first < end; first += kDepth<kType>) {
#pragma unroll
    for (uint32_t i = 0; i < kDepth<kType>; ++i) {
      const uint32_t block = first + i, next = block + kDepth<kType>;
      if (block < end) {
        MultiplyBlock(ring[i], params.x, first_row, block * kBlockGroups, output_scales, partial);
      }
      if (next < end) ring[i].Load(panel + size_t{next} * BlockBytes(kType), lane);
    }
  }

#pragma unroll
  for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      sums[warp][8 * tile + 2 * t + i % 2][g + 8 * (i / 2)] = partial[tile][i];
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kRows * kPanelOutputs; i += kThreads) {
    const uint32_t row = i / kPanelOutputs, output = i % kPanelOutputs;
    if (first_row + row >= params.x.row_count || first_output + output >= weight.rows) continue;
    float total = 0;
#pragma unroll
    for (uint32_t split = 0; split < kSplits; ++split) total += sums[split][row][output];
    out.y[size_t{first_row + row} * weight.rows + first_output + output] = total;
  }
}

template <TensorType kType>
cudaError_t Launch(const ProductParams& params, uint32_t panels, cudaStream_t stream) {
  const uint32_t rows = params.x.row_count;
  const dim3 block(kThreads);
  if (rows <= 8) {
    return GPU_LAUNCH((&FewRowsKernel<kType, 1>), dim3(panels), block, 0, stream, params);
  }
  const dim3 grid(panels, CeilDivide(rows, 16));
  return GPU_LAUNCH((&FewRowsKernel<kType, 2>), grid, block, 0, stream, params);
}

}  // namespace

cudaError_t LaunchFewRowsProducts(const ProductParams& params, uint32_t panel_count,
                                  cudaStream_t stream) {
  switch (params.outputs[0].weight.type) {
    case TensorType::kQ4_0:
      return Launch<TensorType::kQ4_0>(params, panel_count, stream);
    case TensorType::kQ4_1:
      return Launch<TensorType::kQ4_1>(params, panel_count, stream);
    case TensorType::kQ8_0:
      return Launch<TensorType::kQ8_0>(params, panel_count, stream);
    case TensorType::kF16:
      return Launch<TensorType::kF16>(params, panel_count, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cairn::cuda
