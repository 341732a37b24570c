#include "kernels/cuda/dense_products.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace cairn::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS recommends for Hopper
constexpr size_t kSlabBytes = size_t{64} << 20;       // of weights as float16 at a time

Status StatusOf(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return Status();
  return Status(Code::kInternal, std::string("cuBLAS: ") + cublasGetStatusString(status));
}

// Whole panels, at least one.
uint32_t SlabOutputs(uint32_t cols) {
  const size_t panels = kSlabBytes / (size_t{kPanelOutputs} * cols * sizeof(uint16_t));
  return static_cast<uint32_t>(std::clamp<size_t>(panels, 1, 1 << 20)) * kPanelOutputs;
}

// Float16, and a scale a row.
size_t ActivationBytes(uint32_t row_count, uint32_t cols) {
  return row_count * (cols * sizeof(uint16_t) + sizeof(float));
}

}  // namespace

Result<std::unique_ptr<DenseProducts>> DenseProducts::Create(Device& device) {
  std::unique_ptr<DenseProducts> products(new DenseProducts(device));
  ASSIGN_OR_RETURN(products->workspace_, device.Allocate(kWorkspaceBytes));
  RETURN_IF_ERROR(StatusOf(cublasCreate(&products->handle_)));
  return products;
}

uint64_t DenseProducts::ScratchBytesMax(uint32_t rows_max, uint32_t cols_max, uint64_t matrix_max) {
  const uint64_t panel_bytes = uint64_t{kPanelOutputs} * cols_max * sizeof(uint16_t);
  const uint64_t slab_bytes =
      std::min(std::max<uint64_t>(kSlabBytes, panel_bytes), matrix_max * sizeof(uint16_t));
  return slab_bytes + ActivationBytes(rows_max, cols_max);
}

DenseProducts::~DenseProducts() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

Status DenseProducts::SetActivations(const float* x, uint32_t row_count, uint32_t cols,
                                     CudaStream& stream) {
  CHECK(cols % 8 == 0);
  const size_t half_bytes = size_t{row_count} * cols * sizeof(uint16_t);  // a multiple of 16
  ASSIGN_OR_RETURN(std::byte * memory,
                   activations_.Reserve<std::byte>(ActivationBytes(row_count, cols), stream));
  uint16_t* const halves = reinterpret_cast<uint16_t*>(memory);
  float* const row_scales = reinterpret_cast<float*>(memory + half_bytes);
  stream.Note(LaunchRound(x, row_count, cols, halves, row_scales, stream.handle()));
  x_ = halves;
  row_scales_ = row_scales;
  row_count_ = row_count;
  cols_ = cols;
  // Setting the stream puts the workspace back to cuBLAS's own.
  RETURN_IF_ERROR(StatusOf(cublasSetStream(handle_, stream.handle())));
  return StatusOf(cublasSetWorkspace(handle_, workspace_->data(), kWorkspaceBytes));
}

Status DenseProducts::Multiply(const PackedMatrix& weight, float* y, CudaStream& stream) {
  CHECK(weight.cols == cols_ && HasDenseProduct(weight));
  const uint32_t slab = std::min(SlabOutputs(cols_), weight.rows);
  ASSIGN_OR_RETURN(uint16_t * halves, weights_.Reserve<uint16_t>(size_t{slab} * cols_, stream));
  for (uint32_t first = 0; first < weight.rows; first += slab) {
    const uint32_t count = std::min(slab, weight.rows - first);
    stream.Note(LaunchUnpack(weight, first, count, halves, stream.handle()));
    RETURN_IF_ERROR(StatusOf(MultiplyDense(handle_, {.weight = halves,
                                                     .x = x_,
                                                     .y = y + first,
                                                     .output_count = count,
                                                     .output_stride = weight.rows,
                                                     .row_count = row_count_,
                                                     .cols = cols_})));
  }
  stream.Note(LaunchRescale(y, row_count_, weight.rows, row_scales_, stream.handle()));
  return Status();
}

}  // namespace cairn::cuda
