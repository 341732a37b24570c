// CUDA's device language for a host compiler: what kernels/cuda/gpu.h includes when it is not nvcc
// that compiles. The toolkit's own headers give the types; this adds what they have only for a
// device: built-in variables, barriers, warp intrinsics, atomics, loads and mathematics.
//
// Left out on purpose, so that it fails to compile: `__shared__` (use GPU_SHARED), `__activemask`
// (its answer depends on scheduling), textures, cooperative groups, inline PTX.
// Objects in shared memory and kernel arguments are trivially destructible: the stacks of a block
// that is given up are dropped, not unwound.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cuemu/atomics.h>
#include <cuemu/mathematics.h>
#include <cuemu/thread.h>
#include <cuemu/warp.h>

#include <tuple>
#include <type_traits>
#include <utility>

#undef __shared__
#undef __launch_bounds__
#define __shared__ shared_memory_is_declared_with_GPU_SHARED
#define __launch_bounds__(...)

#define threadIdx (::cairn::cuemu::current_thread->index)
#define blockIdx (::cairn::cuemu::current_thread->block)
#define blockDim (::cairn::cuemu::current_thread->block_dim)
#define gridDim (::cairn::cuemu::current_thread->grid_dim)
// Not a macro: cudaDeviceProp has a member of this name.
inline constexpr int warpSize = 32;

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)         \
  ::cairn::cuemu::LaunchKernel(#kernel, kernel, grid, block, shared_bytes, \
                               stream __VA_OPT__(, ) __VA_ARGS__)

#define GPU_SHARED(name, ...)                                                              \
  static char name##_tag;                                                                  \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>(                           \
      ::cairn::cuemu::StaticShared(&name##_tag, sizeof(std::type_identity_t<__VA_ARGS__>), \
                                   alignof(std::type_identity_t<__VA_ARGS__>), #name))

#define GPU_DYNAMIC_SHARED(type, name) \
  type* name = static_cast<type*>(::cairn::cuemu::DynamicShared())

namespace cairn::cuemu {

// Answers as a launch does under nvcc (gpu.h): with the last error of this thread.
template <class... Parameters, class... Arguments>
cudaError_t LaunchKernel(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...));
  struct Closure {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  };
  auto* closure = new Closure{kernel, {std::forward<Arguments>(arguments)...}};
  const auto run = [](const void* memory) {
    const auto* call = static_cast<const Closure*>(memory);
    std::apply(call->kernel, call->arguments);
  };
  const auto destroy = [](void* memory) { delete static_cast<Closure*>(memory); };
  (void)cudaGetLastError();
  (void)EnqueueLaunch({reinterpret_cast<const void*>(kernel), name, grid, block, shared_bytes,
                       stream, run, destroy, closure, sizeof *closure});
  return cudaGetLastError();
}

}  // namespace cairn::cuemu

using CuemuPlace = ::cairn::cuemu::Place;

inline void __syncthreads(CuemuPlace place = CuemuPlace::Here()) {
  ::cairn::cuemu::MeetBlock(0, ::cairn::cuemu::BarrierKind::kPlain, place);
}
inline int __syncthreads_count(int predicate, CuemuPlace place = CuemuPlace::Here()) {
  return ::cairn::cuemu::MeetBlock(predicate, ::cairn::cuemu::BarrierKind::kCount, place);
}
inline int __syncthreads_and(int predicate, CuemuPlace place = CuemuPlace::Here()) {
  return ::cairn::cuemu::MeetBlock(predicate, ::cairn::cuemu::BarrierKind::kAnd, place);
}
inline int __syncthreads_or(int predicate, CuemuPlace place = CuemuPlace::Here()) {
  return ::cairn::cuemu::MeetBlock(predicate, ::cairn::cuemu::BarrierKind::kOr, place);
}
inline void __nanosleep(unsigned, CuemuPlace place = CuemuPlace::Here()) {
  ::cairn::cuemu::Yield(place);
}
[[noreturn]] inline void __trap(CuemuPlace place = CuemuPlace::Here()) {
  ::cairn::cuemu::Trap("__trap()", place);
}
