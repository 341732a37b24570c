// The one header that kernels include. Under nvcc it is CUDA; under a host compiler it is the
// emulator (docs/CUDA.md), which runs the same source on a CPU in tests. What the two spell
// differently, and all that would be PTX, is here and nowhere else.
//
//   GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)   a cudaError_t
//   GPU_SHARED(name, float[32][8]);         static shared memory, in a kernel's body
//   GPU_DYNAMIC_SHARED(float4, name);       the dynamic part, as an array; one per kernel
//
// Parameters of kernels are trivially copyable. Threads: what CUDA says of streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace cairn::gpu {

struct Place {  // the emulator's reports name lines; hardware needs none
  static constexpr __host__ __device__ Place Here() { return {}; }
};

template <class... Parameters, class... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                         cudaStream_t stream, Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...));
  (void)cudaGetLastError();  // of an earlier call, which has answered with it
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}

}  // namespace cairn::gpu

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ::cairn::gpu::LaunchKernel(kernel, grid, block, shared_bytes, stream __VA_OPT__(, ) __VA_ARGS__)
#define GPU_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
#define GPU_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char gpu_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(gpu_dynamic_shared)

#else

#include <cuemu/device.h>
#include <cuemu/tensor.h>

namespace cairn::gpu {
using Place = cuemu::Place;
}  // namespace cairn::gpu

#endif

namespace cairn::gpu {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr unsigned kWarpSize = 32;

// Lets a kernel have more than 48 KiB of dynamic shared memory. Once per kernel, before its launch.
template <class... Parameters>
cudaError_t AllowSharedBytes(void (*kernel)(Parameters...), size_t bytes) {
  if (bytes <= size_t{48} << 10) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// ---- cp.async: 16 bytes from global to shared memory, past the registers
// ---------------------------

// Zeros when `take` is false; `global` is not read then. Both addresses are multiples of 16.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool take = true,
                                            [[maybe_unused]] Place place = Place::Here()) {
#if defined(__CUDACC__)
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global),
               "r"(take ? 16 : 0)
               : "memory");
#else
  cuemu::AsyncCopy(shared, global, 16, take ? 16 : 0, place);
#endif
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void CommitCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#else
  cuemu::AsyncCopyCommit();
#endif
}

// Until at most `pending_max` of this thread's groups are on their way. Other threads see the bytes
// after a barrier.
template <int pending_max>
__device__ __forceinline__ void WaitCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending_max) : "memory");
#else
  cuemu::AsyncCopyWait(pending_max);
#endif
}

// ---- tensor cores
// ----------------------------------------------------------------------------------

// Four 8 x 8 matrices of halves from shared memory: lane l gives the address of row l % 8 of matrix
// l / 8 and gets elements (l / 4, l % 4 * 2 + {0, 1}) of each; transposed, (l % 4 * 2 + {0, 1}, l /
// 4).
template <bool transposed = false>
__device__ __forceinline__ void LoadMatrices(uint32_t (&words)[4], const void* row,
                                             [[maybe_unused]] Place place = Place::Here()) {
#if defined(__CUDACC__)
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  }
#else
  cuemu::LdMatrix(words, row, transposed, place);
#endif
}

// The same for two matrices; lanes 0 to 15 give the addresses.
template <bool transposed = false>
__device__ __forceinline__ void LoadMatrices(uint32_t (&words)[2], const void* row,
                                             [[maybe_unused]] Place place = Place::Here()) {
#if defined(__CUDACC__)
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(from)
                 : "memory");
  }
#else
  cuemu::LdMatrix(words, row, transposed, place);
#endif
}

// d = a * b + c: a is 16 x 16 halves, b 16 x 8 halves, c and d 16 x 8 floats, in the fragments of
// mma.m16n8k16. With g = lane / 4 and t = lane % 4, the lane holds of d and c (g, 2t), (g, 2t + 1),
// (g + 8, 2t), (g + 8, 2t + 1); of a, in pairs along k, (g, 2t), (g + 8, 2t), (g, 2t + 8),
// (g + 8, 2t + 8); of b, in pairs along k, (2t, g), (2t + 8, g). d may be c.
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    const float (&c)[4],
                                    [[maybe_unused]] Place place = Place::Here()) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#else
  cuemu::MmaM16N8K16(d, a, b, c, place);
#endif
}

// ---- sums over a warp, in a fixed order
// -------------------------------------------------------------

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

__device__ __forceinline__ float WarpMax(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

}  // namespace cairn::gpu
