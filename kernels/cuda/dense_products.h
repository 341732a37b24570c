// Products of many rows by cuBLAS: weights are turned into float16 slab by slab, and so are the
// activations, once for all products that share them.
// Threads: those of the stream.
#pragma once

#include <cublas_v2.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/product_dense.h"
#include "kernels/cuda/scratch.h"

namespace cairn::cuda {

class DenseProducts {
 public:
  static Result<std::unique_ptr<DenseProducts>> Create(Device& device);
  ~DenseProducts();
  // What the calls take as they go, with matrices of up to so many elements.
  static uint64_t ScratchBytesMax(uint32_t rows_max, uint32_t cols_max, uint64_t matrix_max);
  DenseProducts(const DenseProducts&) = delete;
  DenseProducts& operator=(const DenseProducts&) = delete;

  // The activations of the Multiply calls that follow. cols is a multiple of 8.
  Status SetActivations(const float* x, uint32_t row_count, uint32_t cols, CudaStream& stream);
  // y: [row_count, weight.rows].
  Status Multiply(const PackedMatrix& weight, float* y, CudaStream& stream);

 private:
  explicit DenseProducts(Device& device) : weights_(device), activations_(device) {}

  cublasHandle_t handle_ = nullptr;
  std::unique_ptr<Buffer> workspace_;  // cuBLAS takes none of its own, and so none at odd times
  Scratch weights_;
  Scratch activations_;
  const uint16_t* x_ = nullptr;
  const float* row_scales_ = nullptr;
  uint32_t row_count_ = 0;
  uint32_t cols_ = 0;
};

}  // namespace cairn::cuda
