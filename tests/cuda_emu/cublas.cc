// The part of cuBLAS that is used, emulated: products of f16, bf16 and f32 matrices with f32 sums,
// in increasing k. What cuBLAS itself does with the order and the rounding of its sums is not
// modelled.

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>

#include "tests/cuda_emu/machine.h"
#include "tests/cuda_emu/runtime.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace cairn::cuemu {
namespace {

bool IsKnown(cudaDataType type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

size_t BytesOf(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

// A matrix in columns, as cuBLAS has them.
struct Matrix {
  const void* data;
  cudaDataType type;
  size_t stride;  // between columns, in elements
  int rows;
  int columns;

  size_t size_bytes() const {
    if (rows == 0 || columns == 0) return 0;
    return ((static_cast<size_t>(columns) - 1) * stride + static_cast<size_t>(rows)) *
           BytesOf(type);
  }
  float Get(size_t row, size_t column) const {
    const size_t i = column * stride + row;
    if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
    if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[i]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  }
  void Set(size_t row, size_t column, float value) const {
    const size_t i = column * stride + row;
    void* target = const_cast<void*>(data);
    if (type == CUDA_R_32F) {
      static_cast<float*>(target)[i] = value;
    } else if (type == CUDA_R_16F) {
      static_cast<__half*>(target)[i] = __float2half_rn(value);
    } else {
      static_cast<__nv_bfloat16*>(target)[i] = __float2bfloat16_rn(value);
    }
  }
};

struct Product {
  Matrix a;
  Matrix b;
  Matrix c;
  bool a_transposed;
  bool b_transposed;
  int depth;
  float alpha;
  float beta;
};

void Multiply(const Product& product) {
  for (size_t column = 0; column < static_cast<size_t>(product.c.columns); column++) {
    for (size_t row = 0; row < static_cast<size_t>(product.c.rows); row++) {
      float sum = 0;
      for (size_t k = 0; k < static_cast<size_t>(product.depth); k++) {
        const float a = product.a_transposed ? product.a.Get(k, row) : product.a.Get(row, k);
        const float b = product.b_transposed ? product.b.Get(column, k) : product.b.Get(k, column);
        sum += a * b;
      }
      // As BLAS has it, c is not read when beta is zero.
      const float before = product.beta == 0 ? 0 : product.beta * product.c.Get(row, column);
      product.c.Set(row, column, product.alpha * sum + before);
    }
  }
}

void Run(const Product& product, const Moment& moment) {
  if (Machine::Get().sticky_error() != cudaSuccess) return;
  NoteAccess(moment, product.a.data, product.a.size_bytes(), AccessKind::kRead);
  NoteAccess(moment, product.b.data, product.b.size_bytes(), AccessKind::kRead);
  NoteAccess(moment, product.c.data, product.c.size_bytes(), AccessKind::kWrite);
  Multiply(product);
}

}  // namespace
}  // namespace cairn::cuemu

using cairn::cuemu::Machine;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (Machine::Get().Enter("cublasCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_operation,
                            cublasOperation_t b_operation, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType a_type, int a_stride, const void* b,
                            cudaDataType b_type, int b_stride, const void* beta, void* c,
                            cudaDataType c_type, int c_stride, cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  using cairn::cuemu::IsKnown;
  if (Machine::Get().Enter("cublasGemmEx") != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!Machine::Get().Knows(handle->stream)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!IsKnown(a_type) || !IsKnown(b_type) || !IsKnown(c_type) || compute != CUBLAS_COMPUTE_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool a_transposed = a_operation != CUBLAS_OP_N;
  const bool b_transposed = b_operation != CUBLAS_OP_N;
  const int a_rows = a_transposed ? k : m;
  const int b_rows = b_transposed ? n : k;
  if (m < 0 || n < 0 || k < 0 || a_stride < a_rows || b_stride < b_rows || c_stride < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto matrix = [](const void* data, cudaDataType type, int stride, int rows, int columns) {
    return cairn::cuemu::Matrix{data, type, static_cast<size_t>(stride), rows, columns};
  };
  const cairn::cuemu::Product product = {
      .a = matrix(a, a_type, a_stride, a_rows, a_transposed ? m : k),
      .b = matrix(b, b_type, b_stride, b_rows, b_transposed ? k : n),
      .c = matrix(c, c_type, c_stride, m, n),
      .a_transposed = a_transposed,
      .b_transposed = b_transposed,
      .depth = k,
      .alpha = *static_cast<const float*>(alpha),
      .beta = *static_cast<const float*>(beta)};
  handle->stream->Push({"cublasGemmEx", [product](const cairn::cuemu::Moment& moment) {
                          cairn::cuemu::Run(product, moment);
                        }});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
