// Kernels that show where the tensor-core instructions of kernels/cuda/gpu.h put their elements,
// for a comparison with plain loops (docs/CUDA.md: the emulator's layouts are written from the
// manual).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::cuda {

inline constexpr uint32_t kFragmentRows = 16, kFragmentColumns = 8, kFragmentDepth = 16;

// How the fragments of a and b come into registers.
enum class FragmentLoad : uint8_t {
  kPlain,       // element by element, as the comment on gpu::Mma says
  kRows,        // ldmatrix: a lies [row][k], b lies [column][k]
  kTransposed,  // ldmatrix.trans: a lies [k][row], b lies [k][column]
};

// Device addresses. d = a * b + c, by one mma.
struct FragmentProduct {
  const uint16_t* a;  // float16, [16][16]
  const uint16_t* b;  // [16][8]
  const float* c;     // [16][8]
  float* d;
};
cudaError_t LaunchFragmentProduct(FragmentLoad load, const FragmentProduct& product,
                                  cudaStream_t stream);

// Four matrices of 8 x 8 whole numbers, one below the other: words[lane][matrix].
cudaError_t LaunchLoadMatrices(bool transposed, const uint16_t* matrices, uint32_t* words,
                               cudaStream_t stream);

// to[lane] = the 16 bytes of from[lane] for every second lane, through cp.async, the others zero.
cudaError_t LaunchCopyAsync(const uint4* from, uint4* to, cudaStream_t stream);

}  // namespace cairn::cuda
