#include "kernels/cuda/gpu.h"
#include "tests/cuda_emu/emulator_kernels.h"

namespace cairn::cuemu {
namespace {

using gpu::kFullWarp;

__global__ void Number(unsigned* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned number = block * blockDim.x * blockDim.y * blockDim.z + thread;
  out[number] = number;
}

__global__ void __launch_bounds__(256) BlockSum(float* out, const float* in) {
  GPU_SHARED(partial, float[8]);
  const float sum = gpu::WarpSum(in[blockIdx.x * 256 + threadIdx.x]);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (float part : partial) total += part;
  out[blockIdx.x] = total;
}

__global__ void Warp(unsigned* out) {
  const unsigned lane = threadIdx.x;
  unsigned* mine = out + lane * kWarpResults;
  mine[0] = __shfl_sync(kFullWarp, lane * 10, 7);
  mine[1] = __shfl_sync(kFullWarp, lane * 10, 3, 8);
  mine[2] = __shfl_xor_sync(kFullWarp, lane * 10, 5);
  mine[3] = __shfl_xor_sync(kFullWarp, lane * 10, 16, 16);
  mine[4] = __shfl_up_sync(kFullWarp, lane * 10, 3);
  mine[5] = __shfl_up_sync(kFullWarp, lane * 10, 2, 8);
  mine[6] = __shfl_down_sync(kFullWarp, lane * 10, 3);
  mine[7] = __ballot_sync(kFullWarp, lane % 3 == 0);
  mine[8] = __reduce_add_sync(kFullWarp, lane);
  mine[9] = static_cast<unsigned>(__all_sync(kFullWarp, lane < 32)) * 2 +
            static_cast<unsigned>(__any_sync(kFullWarp, lane == 40));
  // Halves of a warp that go their own ways, each within its mask.
  if (lane < 16) {
    mine[10] = __reduce_max_sync(0x0000ffffu, lane);
  } else {
    mine[10] = __reduce_min_sync(0xffff0000u, lane);
  }
  __syncwarp();
  mine[11] = static_cast<unsigned>(warpSize);
}

__global__ void Vote(int* out, int true_count) {
  const int yes = static_cast<int>(threadIdx.x) < true_count ? 1 : 0;
  const int count = __syncthreads_count(yes);
  const int all = __syncthreads_and(yes);
  const int any = __syncthreads_or(yes);
  out[threadIdx.x] = count * 4 + all * 2 + any;
}

__global__ void Tile(float* c, const __half* a, const __half* b, bool transposed) {
  GPU_SHARED(tile_a, __half[16][16]);
  GPU_SHARED(tile_b, __half[128]);
  const unsigned lane = threadIdx.x;
  gpu::CopyAsync16(&tile_a[lane / 2][lane % 2 * 8], a + lane * 8);
  if (lane < 16) gpu::CopyAsync16(tile_b + lane * 8, b + lane * 8);
  gpu::CommitCopies();
  gpu::WaitCopies<0>();
  __syncwarp();
  uint32_t of_a[4];
  uint32_t of_b[2];
  gpu::LoadMatrices(of_a, &tile_a[lane % 16][lane / 16 * 8]);
  if (transposed) {
    gpu::LoadMatrices<true>(of_b, tile_b + lane % 16 * 8);
  } else {
    gpu::LoadMatrices(of_b, tile_b + lane % 8 * 16 + lane / 8 % 2 * 8);
  }
  float sums[4] = {};
  gpu::Mma(sums, of_a, of_b, sums);
  for (unsigned i = 0; i < 4; i++) {
    c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

__global__ void Pipeline(float* out, const float* in, unsigned tile_count) {
  GPU_SHARED(buffers, float4[2][32]);
  const unsigned lane = threadIdx.x;
  const auto* tiles = reinterpret_cast<const float4*>(in);
  gpu::CopyAsync16(&buffers[0][lane], tiles + lane);
  gpu::CommitCopies();
  float sum = 0;
  for (unsigned tile = 0; tile < tile_count; tile++) {
    const bool more = tile + 1 < tile_count;
    gpu::CopyAsync16(&buffers[(tile + 1) % 2][lane], tiles + (tile + 1) * 32 + lane, more);
    gpu::CommitCopies();
    gpu::WaitCopies<1>();
    __syncwarp();  // all lanes' copies of this tile are there
    const auto* floats = reinterpret_cast<const float*>(buffers[tile % 2]);
    for (unsigned i = 0; i < 4; i++) sum += floats[(lane * 4 + i * 32 + 1) % 128];
    __syncwarp();  // all lanes have read it, before it is filled again
  }
  gpu::WaitCopies<0>();
  out[lane] = sum;
}

__global__ void Atomics(unsigned* counter, float* sum, unsigned* largest) {
  const unsigned number = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(counter, 1);
  atomicAdd(sum, 1.0f);
  atomicMax(largest, number);
}

__global__ void Turns(unsigned* out) {
  GPU_SHARED(turn, unsigned);
  if (threadIdx.x == 0) atomicExch(&turn, 0u);
  __syncthreads();
  while (atomicCAS(&turn, threadIdx.x, threadIdx.x) != threadIdx.x) __nanosleep(10);
  out[threadIdx.x] = threadIdx.x + 100;
  __threadfence();
  atomicAdd(&turn, 1);
}

__global__ void Increment(float* out, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] += 1;
}

__global__ void Dynamic(float* out, unsigned count) {
  GPU_DYNAMIC_SHARED(float, values);
  for (unsigned i = threadIdx.x; i < count; i += 32) values[i] = static_cast<float>(i);
  __syncthreads();
  out[threadIdx.x] = values[count - 1 - threadIdx.x];
}

}  // namespace

cudaError_t LaunchNumber(unsigned* out, dim3 grid, dim3 block, cudaStream_t stream) {
  return GPU_LAUNCH(Number, grid, block, 0, stream, out);
}
cudaError_t LaunchBlockSum(float* out, const float* in, unsigned blocks, cudaStream_t stream) {
  return GPU_LAUNCH(BlockSum, blocks, 256, 0, stream, out, in);
}
cudaError_t LaunchWarp(unsigned* out, cudaStream_t stream) {
  return GPU_LAUNCH(Warp, 1, 32, 0, stream, out);
}
cudaError_t LaunchVote(int* out, int true_count, cudaStream_t stream) {
  return GPU_LAUNCH(Vote, 1, 96, 0, stream, out, true_count);
}
cudaError_t LaunchTile(float* c, const __half* a, const __half* b, bool transposed,
                       cudaStream_t stream) {
  return GPU_LAUNCH(Tile, 1, 32, 0, stream, c, a, b, transposed);
}
cudaError_t LaunchPipeline(float* out, const float* in, unsigned tile_count, cudaStream_t stream) {
  return GPU_LAUNCH(Pipeline, 1, 32, 0, stream, out, in, tile_count);
}
cudaError_t LaunchAtomics(unsigned* counter, float* sum, unsigned* largest, unsigned blocks,
                          cudaStream_t stream) {
  return GPU_LAUNCH(Atomics, blocks, 64, 0, stream, counter, sum, largest);
}
cudaError_t LaunchTurns(unsigned* out, unsigned threads, cudaStream_t stream) {
  return GPU_LAUNCH(Turns, 1, threads, 0, stream, out);
}
cudaError_t LaunchIncrement(float* out, unsigned count, cudaStream_t stream) {
  return GPU_LAUNCH(Increment, (count + 63) / 64, 64, 0, stream, out, count);
}
cudaError_t LaunchDynamic(float* out, size_t bytes, bool allow, cudaStream_t stream) {
  if (allow) {
    const cudaError_t error = gpu::AllowSharedBytes(Dynamic, bytes);
    if (error != cudaSuccess) return error;
  }
  return GPU_LAUNCH(Dynamic, 1, 32, bytes, stream, out, static_cast<unsigned>(bytes / 4));
}

}  // namespace cairn::cuemu
