#include "kernels/cuda/embed_kernel.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kThreadElements = 8;

struct EmbedParams {
  PackedMatrix table;
  const BatchRow* rows;
  float* out;
};

// Where eight consecutive elements of a row lie in a block: group, lane of the warp, and half of
// the panel (product_format.h).
struct Place {
  uint32_t group;
  uint32_t lane;
  uint32_t half;
};

__device__ float HalfAt(const std::byte* from) {
  return __half2float(*reinterpret_cast<const __half*>(from));
}

template <TensorType kType>
__device__ float ReadElement(const std::byte* block, const Place& place, uint32_t e) {
  if constexpr (kType == TensorType::kF16) {
    return HalfAt(block + (place.group * 2 + place.half) * 512 + place.lane * 16 + e * 2);
  }
  const uint32_t pair = place.group * 2 + place.half;
  const std::byte* const scales =
      block + CodeBytes(kType) + place.lane / 4 * (ScaleBytes(kType) / 8);
  if constexpr (kType == TensorType::kQ8_0) {
    const std::byte code = block[place.group * 512 + place.lane * 16 + place.half * 8 + e];
    return HalfAt(scales + pair * 2) * static_cast<float>(static_cast<int>(code) - 128);
  } else {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(block + place.lane * 16 + pair * 4);
    const float nibble = static_cast<float>(word >> (e / 2 * 4 + e % 2 * 16) & 15u);
    if constexpr (kType == TensorType::kQ4_0) return HalfAt(scales + pair * 2) * (nibble - 8.0f);
    return fmaf(HalfAt(scales + pair * 4), nibble, HalfAt(scales + pair * 4 + 2));
  }
}

// One block a row; a thread reads eight elements.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 16) EmbedKernel(EmbedParams params) {
  const PackedMatrix& table = params.table;
  const uint32_t token = params.rows[blockIdx.x].token;
  float* const out = params.out + size_t{blockIdx.x} * table.cols;
  if constexpr (kType == TensorType::kF32) {
    const float* const row =
        reinterpret_cast<const float*>(table.data) + size_t{token} * table.cols;
    for (uint32_t i = threadIdx.x; i < table.cols; i += kThreads) out[i] = row[i];
    return;
  }
  const std::byte* const panel =
      table.data + size_t{token / kPanelOutputs} * table.block_count * BlockBytes(kType);
  const uint32_t output = token % kPanelOutputs;
  const float output_scale = kType == TensorType::kF16 ? table.output_scales[token] : 1.0f;
  for (uint32_t first = threadIdx.x * kThreadElements; first < table.cols;
       first += kThreads * kThreadElements) {
    const std::byte* const block = panel + size_t{first / kBlockCols} * BlockBytes(kType);
    const Place place = {first % kBlockCols / kQuantGroup,
                         output % 8 * 4 + first % kQuantGroup / kThreadElements, output / 8};
#pragma unroll
    for (uint32_t e = 0; e < kThreadElements; ++e) {
      if (first + e >= table.cols) break;
      out[first + e] = ReadElement<kType>(block, place, e) * output_scale;
    }
  }
}

}  // namespace

cudaError_t LaunchEmbed(const PackedMatrix& table, const BatchRow* rows, uint32_t row_count,
                        float* out, cudaStream_t stream) {
  if (row_count == 0) return cudaSuccess;
  const EmbedParams params = {table, rows, out};
  const dim3 grid(row_count), block(kThreads);
  switch (table.type) {
    case TensorType::kF32:
      return GPU_LAUNCH(&EmbedKernel<TensorType::kF32>, grid, block, 0, stream, params);
    case TensorType::kF16:
      return GPU_LAUNCH(&EmbedKernel<TensorType::kF16>, grid, block, 0, stream, params);
    case TensorType::kQ8_0:
      return GPU_LAUNCH(&EmbedKernel<TensorType::kQ8_0>, grid, block, 0, stream, params);
    case TensorType::kQ4_0:
      return GPU_LAUNCH(&EmbedKernel<TensorType::kQ4_0>, grid, block, 0, stream, params);
    case TensorType::kQ4_1:
      return GPU_LAUNCH(&EmbedKernel<TensorType::kQ4_1>, grid, block, 0, stream, params);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cairn::cuda
