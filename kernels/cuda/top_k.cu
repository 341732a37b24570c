// Each block sorts a part of a row and keeps its k highest, or finds the highest one; what all
// parts kept is a shorter row, and so on until one part is left.
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/top_k.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kPart = 2048;
constexpr float kLargest = 3.402823466e38f;

constexpr uint32_t PartsOf(uint32_t width) { return (width + kPart - 1) / kPart; }

// Keys are ordered as the ranks are, the highest first, and no two of a row are equal.
__device__ uint64_t KeyOf(float value, uint32_t id) {
  value = fminf(fmaxf(value, -INFINITY), kLargest);  // of a NaN, fmaxf takes the other
  if (value == 0) value = 0;                         // not negative
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - id);
}
__device__ RankedLogit LogitOf(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered;
  return {__uint_as_float(bits), 0xffffffffu - static_cast<uint32_t>(key)};
}

__device__ uint64_t Higher(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ uint64_t LoadKey(const float* row, uint32_t i) { return KeyOf(row[i], i); }
__device__ uint64_t LoadKey(const uint64_t* row, uint32_t i) { return row[i]; }
__device__ void StoreKey(uint64_t key, RankedLogit& out) { out = LogitOf(key); }
__device__ void StoreKey(uint64_t key, uint64_t& out) { out = key; }

// Bitonic (Batcher 1968): runs of length `run` become sorted runs of twice that length, every
// second one the other way round.
__device__ void SortDescending(uint64_t (&keys)[kPart]) {
  for (uint32_t run = 1; run < kPart; run *= 2) {
    for (uint32_t distance = run; distance > 0; distance /= 2) {
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < kPart / 2; i += kThreads) {
        const uint32_t low = i / distance * 2 * distance + i % distance;
        const uint32_t high = low + distance;
        const bool is_descending = (low & (2 * run)) == 0;
        const uint64_t first = keys[low], second = keys[high];
        if ((first < second) == is_descending) keys[low] = second, keys[high] = first;
      }
    }
  }
  __syncthreads();
}

// Block (x, y) of the grid: part x of row y.
template <class Source, class Target>
__global__ void __launch_bounds__(kThreads, 8)
    SelectKernel(const Source* rows, uint32_t width, uint32_t k, Target* out) {
  GPU_SHARED(keys, uint64_t[kPart]);
  const Source* const row = rows + size_t{blockIdx.y} * width;
  for (uint32_t i = threadIdx.x; i < kPart; i += kThreads) {
    const uint32_t at = blockIdx.x * kPart + i;
    keys[i] = at < width ? LoadKey(row, at) : 0;  // below every key
  }
  SortDescending(keys);
  Target* const to = out + (size_t{blockIdx.y} * gridDim.x + blockIdx.x) * k;
  for (uint32_t i = threadIdx.x; i < k; i += kThreads) StoreKey(keys[i], to[i]);
}

// The same for k = 1: nothing needs to be sorted.
template <class Source, class Target>
__global__ void __launch_bounds__(kThreads, 8)
    HighestKernel(const Source* rows, uint32_t width, Target* out) {
  GPU_SHARED(warp_keys, uint64_t[kThreads / gpu::kWarpSize]);
  const Source* const row = rows + size_t{blockIdx.y} * width;
  uint64_t key = 0;
  for (uint32_t i = threadIdx.x; i < kPart; i += kThreads) {
    const uint32_t at = blockIdx.x * kPart + i;
    if (at < width) key = Higher(key, LoadKey(row, at));
  }
#pragma unroll
  for (uint32_t distance = gpu::kWarpSize / 2; distance > 0; distance /= 2) {
    key = Higher(key, __shfl_xor_sync(gpu::kFullWarp, key, static_cast<int>(distance)));
  }
  if (threadIdx.x % gpu::kWarpSize == 0) warp_keys[threadIdx.x / gpu::kWarpSize] = key;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (const uint64_t other : warp_keys) key = Higher(key, other);
  StoreKey(key, out[size_t{blockIdx.y} * gridDim.x + blockIdx.x]);
}

template <class Source, class Target>
cudaError_t LaunchParts(const Source* rows, uint32_t width, const TopLogitsArgs& args, Target* out,
                        cudaStream_t stream) {
  const dim3 grid(PartsOf(width), args.row_count), block(kThreads);
  if (args.count == 1) {
    return GPU_LAUNCH((&HighestKernel<Source, Target>), grid, block, 0, stream, rows, width, out);
  }
  return GPU_LAUNCH((&SelectKernel<Source, Target>), grid, block, 0, stream, rows, width,
                    args.count, out);
}

template <class Source>
cudaError_t Select(const Source* rows, uint32_t width, const TopLogitsArgs& args, uint64_t* scratch,
                   cudaStream_t stream) {
  const uint32_t kept = PartsOf(width) * args.count;
  if (PartsOf(width) == 1) return LaunchParts(rows, width, args, args.out, stream);
  const cudaError_t error = LaunchParts(rows, width, args, scratch, stream);
  if (error != cudaSuccess) return error;
  return Select(scratch, kept, args, scratch + size_t{args.row_count} * kept, stream);
}

}  // namespace

size_t TopLogitsScratchCount(const TopLogitsArgs& args) {
  size_t total = 0;
  for (uint32_t width = args.width; PartsOf(width) > 1;) {
    width = PartsOf(width) * args.count;
    total += size_t{args.row_count} * width;
  }
  return total;
}

cudaError_t LaunchTopLogits(const TopLogitsArgs& args, uint64_t* scratch, cudaStream_t stream) {
  if (args.row_count == 0) return cudaSuccess;
  return Select(args.logits, args.width, args, scratch, stream);
}

}  // namespace cairn::cuda
