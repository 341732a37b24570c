#include "kernels/cuda/gpu.h"
#include "kernels/cuda/rope_kernel.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kRopeThreads = 256;
constexpr float kHalfMax = 65504.0f;

struct RopeParams {
  float* q;
  const float* k;
  const float* v;
  const float* cos_sin;
  const BatchRow* rows;
  size_t key_offset;    // of the layer's first KV head in a block
  size_t value_offset;  // likewise
  uint32_t head_bytes;
  uint32_t head_count;
  uint32_t kv_head_count;
  uint32_t head_dim;
  uint32_t rotary_dim;
  uint32_t block_tokens;
  float q_scale;
};

// Blocks hold finite values, so that a weight of zero hides what it is multiplied with. What is
// undefined stays visible.
__device__ __half ToFiniteHalf(float value) {
  const float above = value > kHalfMax ? kHalfMax : value;
  return __float2half_rn(above < -kHalfMax ? -kHalfMax : above);
}

// Elements 2 * pair and 2 * pair + 1 of a head, rotated.
__device__ float2 RotatedPair(const RopeParams& params, const float* head, uint32_t pair,
                              uint32_t position) {
  const float2 x = reinterpret_cast<const float2*>(head)[pair];
  if (2 * pair >= params.rotary_dim) return x;
  const float2 angle = __ldg(reinterpret_cast<const float2*>(params.cos_sin) +
                             size_t{position} * (params.rotary_dim / 2) + pair);
  return {fmaf(x.x, angle.x, -(x.y * angle.y)), fmaf(x.y, angle.x, x.x * angle.y)};
}

// One block a row; threads take pairs of elements, first of the queries, then of K and V.
__global__ void __launch_bounds__(kRopeThreads, 8) RopeWriteKvKernel(RopeParams params) {
  const BatchRow row = params.rows[blockIdx.x];
  const uint32_t head_pairs = params.head_dim / 2;
  const uint32_t query_pairs = params.head_count * head_pairs;
  float* const q = params.q + size_t{blockIdx.x} * 2 * query_pairs;
  for (uint32_t i = threadIdx.x; i < query_pairs; i += kRopeThreads) {
    const uint32_t head = i / head_pairs;
    float2* const pair = reinterpret_cast<float2*>(q) + i;
    const float2 rotated =
        RotatedPair(params, q + size_t{head} * params.head_dim, i % head_pairs, row.position);
    *pair = {rotated.x * params.q_scale, rotated.y * params.q_scale};
  }
  if (row.block == nullptr) return;

  const uint32_t key_pairs = params.kv_head_count * head_pairs;
  const float* const k = params.k + size_t{blockIdx.x} * 2 * key_pairs;
  const float* const v = params.v + size_t{blockIdx.x} * 2 * key_pairs;
  const uint32_t token = row.position % params.block_tokens;
  for (uint32_t i = threadIdx.x; i < key_pairs; i += kRopeThreads) {
    const uint32_t head = i / head_pairs, pair = i % head_pairs;
    const size_t head_offset = size_t{head} * params.head_bytes;
    __half* const keys = reinterpret_cast<__half*>(row.block + params.key_offset + head_offset);
    __half* const values = reinterpret_cast<__half*>(row.block + params.value_offset + head_offset);
    const float2 key = RotatedPair(params, k + size_t{head} * params.head_dim, pair, row.position);
    keys[size_t{2 * pair} * params.block_tokens + token] = ToFiniteHalf(key.x);
    keys[size_t{2 * pair + 1} * params.block_tokens + token] = ToFiniteHalf(key.y);
    const float2 value = reinterpret_cast<const float2*>(v)[i];
    const __half2 halves = {ToFiniteHalf(value.x), ToFiniteHalf(value.y)};
    reinterpret_cast<__half2*>(values + size_t{token} * params.head_dim)[pair] = halves;
  }
}

}  // namespace

cudaError_t LaunchRopeWriteKv(const RopeWriteKvArgs& args, const BatchRow* rows, uint32_t row_count,
                              cudaStream_t stream) {
  if (row_count == 0) return cudaSuccess;
  const KvLayout& layout = *args.layout;
  const RopeParams params = {.q = args.q,
                             .k = args.k,
                             .v = args.v,
                             .cos_sin = args.cos_sin,
                             .rows = rows,
                             .key_offset = layout.key_offset(args.layer, 0),
                             .value_offset = layout.value_offset(args.layer, 0),
                             .head_bytes = static_cast<uint32_t>(layout.head_bytes()),
                             .head_count = args.head_count,
                             .kv_head_count = layout.kv_head_count,
                             .head_dim = layout.head_dim,
                             .rotary_dim = args.rotary_dim,
                             .block_tokens = layout.block_tokens,
                             .q_scale = args.q_scale};
  return GPU_LAUNCH(&RopeWriteKvKernel, dim3(row_count), dim3(kRopeThreads), 0, stream, params);
}

}  // namespace cairn::cuda
