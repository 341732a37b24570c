// A weight matrix in the device's memory, in the layout of product_format.h.
// Threads: immutable.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/product_format.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace cairn::cuda {

class CudaWeight final : public Weight {
 public:
  // Packs on the host, and copies on `stream`, which is synchronised. kResourceExhausted when the
  // device's memory is full.
  static Result<std::unique_ptr<CudaWeight>> Create(const MatrixView& view, Device& device,
                                                    Stream& stream);

  uint32_t rows() const override { return matrix_.rows; }
  uint32_t cols() const override { return matrix_.cols; }
  size_t size_bytes() const override { return buffer_->size_bytes(); }
  const PackedMatrix& matrix() const { return matrix_; }

 private:
  CudaWeight(const PackedMatrix& matrix, std::unique_ptr<Buffer> buffer)
      : matrix_(matrix), buffer_(std::move(buffer)) {}

  const PackedMatrix matrix_;
  const std::unique_ptr<Buffer> buffer_;
};

}  // namespace cairn::cuda
