#include "kernels/cuda/product.h"

#include "base/check.h"

namespace cairn::cuda {

cudaError_t LaunchProducts(std::span<const ProductOutput> outputs, const SplitActivations& x,
                           cudaStream_t stream) {
  CHECK(!outputs.empty() && outputs.size() <= kProductsMax);
  const bool is_few = x.row_count <= kFewRowsMax;
  const uint32_t block_outputs = is_few ? kPanelOutputs : kTilePanels * kPanelOutputs;
  ProductParams params = {.outputs = {}, .x = x};
  uint32_t block_count = 0;
  for (size_t i = 0; i < kProductsMax; ++i) {
    if (i >= outputs.size()) {
      params.outputs[i].first_block = UINT32_MAX;
      continue;
    }
    CHECK(outputs[i].weight.type == outputs[0].weight.type);
    params.outputs[i] = outputs[i];
    params.outputs[i].first_block = block_count;
    block_count += CeilDivide(outputs[i].weight.rows, block_outputs);
  }
  return is_few ? LaunchFewRowsProducts(params, block_count, stream)
                : LaunchTiledProducts(params, block_count, stream);
}

}  // namespace cairn::cuda
