#include "kernels/cuda/gpu.h"
#include "tests/cuda_emu/faulty_kernels.h"

namespace cairn::cuemu {
namespace {

using gpu::kFullWarp;

__global__ void MissedBarrier(float* out, const float* in) {
  if (threadIdx.x >= 40) return;
  out[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
}

__global__ void DivergentBarriers(float* out, const float* in) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    out[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
  }
}

__global__ void DivergentShuffle(float* out, const float* in) {
  const unsigned i = threadIdx.x;
  if (i % 32 < 16) {
    out[i] = __shfl_xor_sync(kFullWarp, in[i], 1);
  } else {
    out[i] = __shfl_xor_sync(kFullWarp, in[i], 2);
  }
}

__global__ void LaneLeftOut(float* out, const float* in) {
  const unsigned i = threadIdx.x;
  out[i] = __shfl_xor_sync(0x0000ffffu, in[i], 1);
}

__global__ void EndedLane(float* out, const float* in) {
  const unsigned i = threadIdx.x;
  if (i % 32 >= 16) return;
  out[i] = __shfl_xor_sync(kFullWarp, in[i], 1);
}

__global__ void ForeignLane(float* out, const float* in) {
  const unsigned i = threadIdx.x;
  if (i % 32 < 16) {
    out[i] = __shfl_sync(0x0000ffffu, in[i], 20);
  }
}

__global__ void Deadlock(float* out, const float* in) {
  const unsigned i = threadIdx.x;
  if (i % 32 < 16) {
    __syncthreads();
  } else {
    out[i] = __shfl_xor_sync(kFullWarp, in[i], 1);
  }
}

__global__ void TrapAtFive(float* out, const float* in) {
  if (threadIdx.x == 5) __trap();
  out[threadIdx.x] = in[threadIdx.x];
}

__global__ void ReadBeforeWait(float* out, const float* in) {
  GPU_SHARED(buffer, float4[64]);
  const unsigned i = threadIdx.x;
  gpu::CopyAsync16(&buffer[i], in + i / 4 * 4);
  gpu::CommitCopies();
  out[i] = buffer[i].x;
  gpu::WaitCopies<0>();
}

__global__ void NeverWaited(float* out, const float* in) {
  GPU_SHARED(buffer, float4[64]);
  gpu::CopyAsync16(&buffer[threadIdx.x], in);
  gpu::CommitCopies();
  out[threadIdx.x] = 0;
}

__global__ void MisalignedAsync(float* out, const float* in) {
  GPU_SHARED(buffer, float4[64]);
  gpu::CopyAsync16(&buffer[threadIdx.x], in + 1);
  gpu::CommitCopies();
  gpu::WaitCopies<0>();
  out[threadIdx.x] = buffer[threadIdx.x].x;
}

__global__ void SharedUnwritten(float* out, const float* in) {
  GPU_SHARED(buffer, float[64]);
  if (threadIdx.x < 32) buffer[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = buffer[threadIdx.x];
}

__global__ void StaticSharedTooLarge(float* out, const float* in) {
  GPU_SHARED(first, float[8 << 10]);
  GPU_SHARED(second, float[5 << 10]);
  first[threadIdx.x] = in[threadIdx.x];
  second[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}

__global__ void Lost(float* out, const float* in) {
  __syncthreads();
  if (blockIdx.x == 3 && threadIdx.x == 63) __trap();
  __syncthreads();
  if (blockIdx.x == 0) out[threadIdx.x] = in[threadIdx.x];
}

__global__ void MissingBarrier(float* out, const float* in) {
  GPU_SHARED(buffer, float[64]);
  buffer[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = buffer[63 - threadIdx.x];
}

__global__ void MissingWarpSync(float* out, const float* in) {
  GPU_SHARED(buffer, float[64]);
  buffer[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  buffer[threadIdx.x] += 1;
  out[threadIdx.x] = buffer[threadIdx.x ^ 1];
}

__global__ void ShuffleIsNoSync(float* out, const float* in) {
  GPU_SHARED(buffer, float[64]);
  buffer[threadIdx.x] = in[threadIdx.x];
  const float other = __shfl_xor_sync(kFullWarp, in[threadIdx.x], 1);
  out[threadIdx.x] = buffer[threadIdx.x ^ 1] + other;
}

__global__ void WriteAfterRead(float* out, const float* in) {
  GPU_SHARED(buffer, float[64]);
  buffer[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = buffer[63 - threadIdx.x];
  buffer[threadIdx.x] = 0;
}

__global__ void WriteAfterLanesRead(float* out, const float* in) {
  GPU_SHARED(buffer, float[64]);
  buffer[threadIdx.x] = in[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = buffer[threadIdx.x ^ 3];
  buffer[threadIdx.x] = 0;
}

__global__ void SharedOutside(float* out, const float* in) {
  GPU_SHARED(buffer, float[60]);
  buffer[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = buffer[threadIdx.x];
}

__global__ void DynamicOutside(float* out, const float* in) {
  GPU_DYNAMIC_SHARED(float, values);
  values[threadIdx.x + 1] = in[threadIdx.x];
  out[threadIdx.x] = values[threadIdx.x + 1];
}

__global__ void GlobalOutside(float* out, const float* in) {
  out[threadIdx.x] = in[threadIdx.x + 16];
}

// The launcher gives it a pointer of the host's in place of `in`.
__global__ void HostMemory(float* out, const float* in) { out[threadIdx.x] = in[threadIdx.x]; }

__global__ void Misaligned(float* out, const float* in) {
  if (threadIdx.x >= 8) return;
  reinterpret_cast<float4*>(out)[threadIdx.x] =
      reinterpret_cast<const float4*>(in + 1)[threadIdx.x];
}

using Kernel = void (*)(float*, const float*);

Kernel KernelOf(Bug bug) {
  switch (bug) {
    case Bug::kNone:
      return nullptr;
    case Bug::kMissedBarrier:
      return MissedBarrier;
    case Bug::kDivergentBarriers:
      return DivergentBarriers;
    case Bug::kDivergentShuffle:
      return DivergentShuffle;
    case Bug::kLaneLeftOut:
      return LaneLeftOut;
    case Bug::kEndedLane:
      return EndedLane;
    case Bug::kForeignLane:
      return ForeignLane;
    case Bug::kDeadlock:
      return Deadlock;
    case Bug::kTrap:
      return TrapAtFive;
    case Bug::kReadBeforeWait:
      return ReadBeforeWait;
    case Bug::kNeverWaited:
      return NeverWaited;
    case Bug::kMisalignedAsync:
      return MisalignedAsync;
    case Bug::kSharedUnwritten:
      return SharedUnwritten;
    case Bug::kStaticSharedTooLarge:
      return StaticSharedTooLarge;
    case Bug::kLost:
      return Lost;
    case Bug::kMissingBarrier:
      return MissingBarrier;
    case Bug::kMissingWarpSync:
      return MissingWarpSync;
    case Bug::kShuffleIsNoSync:
      return ShuffleIsNoSync;
    case Bug::kWriteAfterRead:
      return WriteAfterRead;
    case Bug::kWriteAfterLanesRead:
      return WriteAfterLanesRead;
    case Bug::kSharedOutside:
      return SharedOutside;
    case Bug::kDynamicOutside:
      return DynamicOutside;
    case Bug::kGlobalOutside:
      return GlobalOutside;
    case Bug::kHostMemory:
      return HostMemory;
    case Bug::kMisaligned:
      return Misaligned;
  }
  return nullptr;
}

}  // namespace

cudaError_t LaunchBug(Bug bug, float* out, const float* in, cudaStream_t stream) {
  const unsigned blocks = bug == Bug::kLost ? 8 : 1;
  const size_t shared_bytes = bug == Bug::kDynamicOutside ? 64 * sizeof(float) : 0;
  const Kernel kernel = KernelOf(bug);
  return GPU_LAUNCH(kernel, blocks, 64, shared_bytes, stream, out, in);
}

}  // namespace cairn::cuemu
