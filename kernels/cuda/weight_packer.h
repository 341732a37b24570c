// From a matrix as the file has it to the layout that the products read (product_format.h), on the
// host.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cuda/product_format.h"

namespace cairn::cuda {

struct PackedBytes {
  TensorType type;  // kF16 for BF16
  uint32_t block_count;
  std::vector<std::byte> data;
  std::vector<float> output_scales;  // kF16: one an output, to whole panels; else empty
};

// `view` has been checked.
PackedBytes PackMatrix(const MatrixView& view);

}  // namespace cairn::cuda
