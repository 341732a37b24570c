#include "kernels/cuda/cuda_weight.h"

#include "kernels/cuda/weight_packer.h"
#include "kernels/matrix_check.h"

namespace cairn::cuda {

Result<std::unique_ptr<CudaWeight>> CudaWeight::Create(const MatrixView& view, Device& device,
                                                       Stream& stream) {
  RETURN_IF_ERROR(CheckMatrix(view));
  const PackedBytes packed = PackMatrix(view);
  const size_t scale_bytes = packed.output_scales.size() * sizeof(float);
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                   device.Allocate(packed.data.size() + scale_bytes));
  std::byte* const scales = buffer->data() + packed.data.size();  // a multiple of a block's bytes
  stream.Copy(buffer->data(), packed.data.data(), packed.data.size());
  if (scale_bytes > 0) stream.Copy(scales, packed.output_scales.data(), scale_bytes);
  RETURN_IF_ERROR(stream.Synchronize());
  const PackedMatrix matrix = {.type = packed.type,
                               .rows = view.rows,
                               .cols = view.cols,
                               .block_count = packed.block_count,
                               .data = buffer->data(),
                               .output_scales = reinterpret_cast<const float*>(scales)};
  return std::unique_ptr<CudaWeight>(new CudaWeight(matrix, std::move(buffer)));
}

}  // namespace cairn::cuda
