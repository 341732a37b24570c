// Products with weights, y = x * W^T, one algorithm for all row counts: the same sums in the same
// order for each (row, output), whichever kernel computes them.
//
// Quantised weights and F16 (and BF16): activations are split into whole numbers of 22 bits for
// each (row, group of 32 k), half a step of which is max |x| / 8.4e6; the sums of a group are exact
// for quantised weights, and for floats one rounding for each 16 k; then a group adds two fused
// products (one without an offset), 64-k blocks in order within each of eight parts, the parts in
// order. F32: fused products of every 32nd k, then the lanes as a tree.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/cuda/product_format.h"

namespace cairn::cuda {

// x: [row_count, cols].
cudaError_t LaunchSplitActivations(const float* x, uint32_t cols, const SplitActivations& out,
                                   cudaStream_t stream);

// Up to kProductsMax, whose weights have one type, which is not F32. Grids are the launcher's.
cudaError_t LaunchProducts(std::span<const ProductOutput> outputs, const SplitActivations& x,
                           cudaStream_t stream);

// Row counts up to this go to the kernel that splits k over the warps of a block.
inline constexpr uint32_t kFewRowsMax = 32;

// What both kernels take.
struct ProductParams {
  ProductOutput outputs[kProductsMax];
  SplitActivations x;
};
cudaError_t LaunchFewRowsProducts(const ProductParams& params, uint32_t panel_count,
                                  cudaStream_t stream);
cudaError_t LaunchTiledProducts(const ProductParams& params, uint32_t tile_count,
                                cudaStream_t stream);
inline constexpr uint32_t kTilePanels = 4;  // of a block of the tiled kernel

cudaError_t LaunchFloatProduct(const PackedMatrix& weight, const float* x, uint32_t row_count,
                               float* y, cudaStream_t stream);

}  // namespace cairn::cuda
