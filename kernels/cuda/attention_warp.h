// What one warp does in attention: scores of its queries with 32 positions that lie in shared
// memory, their softmax with a running maximum, and the weighted sum of values.
//
// Fragments (gpu.h): lane (g, t) = (lane / 4, lane % 4) has of each tile of 16 queries rows g and
// g + 8, and of each 8 columns 2 t and 2 t + 1.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gpu.h"

namespace cairn::cuda {

inline constexpr uint32_t kTilePositions = 32;
inline constexpr uint32_t kTileColumns = kTilePositions / 8;

// Shared memory of a block. Rows are padded so that the eight rows of a matrix that ldmatrix reads
// at once lie in different banks.
template <uint32_t kDim, uint32_t kQueries, uint32_t kStagePositions, uint32_t kParts>
struct AttentionShared {
  struct Stage {
    __half keys[kStagePositions / 8][kDim * 8 + 32];  // [eight positions][dim][position]
    __half values[kStagePositions][kDim + 8];
  };
  alignas(16) Stage stages[2];
  __half queries[kParts][kQueries]
                [kDim + 8];  // times log2 e; the second part is what rounding left
};

// A float as one or two halves, and pairs of them as the registers of a fragment.
__device__ inline uint32_t PairBits(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <uint32_t kParts>
__device__ void SplitPair(float first, float second, uint32_t (&parts)[kParts]) {
  const __half2 high = __floats2half2_rn(first, second);
  parts[0] = PairBits(high);
  if constexpr (kParts == 2) {
    const float2 rounded = __half22float2(high);
    parts[1] = PairBits(__floats2half2_rn(first - rounded.x, second - rounded.y));
  }
}

// A state that no position was added to yet has maximum -infinity; differences with it must not be
// undefined.
__device__ inline float FiniteBase(float max) { return max == -INFINITY ? 0.0f : max; }

// Beyond 128 dimensions two warps share the values of a tile of queries, since one has not the
// registers for their sums; both compute its scores.
constexpr uint32_t ValueDims(uint32_t dim) { return dim < 128 ? dim : 128; }
constexpr uint32_t WarpsPerTile(uint32_t dim) { return dim / ValueDims(dim); }

// kTiles tiles of 16 queries, kDim dimensions, kParts float16 for each query element and weight.
template <uint32_t kDim, uint32_t kTiles, uint32_t kParts>
class AttentionWarp {
 public:
  static constexpr uint32_t kValueColumns = ValueDims(kDim) / 8;

  // `value_dim`: the first of the value's dimensions that are this warp's.
  __device__ explicit AttentionWarp(uint32_t value_dim) : value_dim_(value_dim) { Clear(); }

  __device__ uint32_t value_dim() const { return value_dim_; }

  __device__ void Clear() {
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t column = 0; column < kValueColumns; ++column) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) values[tile][column][i] = 0;
      }
      max[tile][0] = max[tile][1] = -INFINITY;
      sum[tile][0] = sum[tile][1] = 0;
    }
  }

  // Adds the 32 positions from `first_position`. Query row (tile, half) sees `seen` positions in
  // all; `is_whole` says that every row sees all 32.
  template <class Shared>
  __device__ void Attend(const Shared& shared, const typename Shared::Stage& stage,
                         uint32_t stage_position, uint32_t first_query, uint32_t first_position,
                         const uint32_t (&seen)[kTiles][2], bool is_whole) {
    float scores[kTiles][kTileColumns][4];
    Score(shared, stage, stage_position, first_query, scores);
    if (!is_whole) Mask(first_position, seen, scores);
    Weigh(scores);
    AddValues(stage, stage_position, scores);
  }

  // Sums were kept lane by lane.
  __device__ void FinishSums() {
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        float& total = sum[tile][half];
        total += __shfl_xor_sync(gpu::kFullWarp, total, 1);
        total += __shfl_xor_sync(gpu::kFullWarp, total, 2);
      }
    }
  }

  float values[kTiles][kValueColumns][4];
  float max[kTiles][2];
  float sum[kTiles][2];

 private:
  template <class Shared>
  __device__ static void Score(const Shared& shared, const typename Shared::Stage& stage,
                               uint32_t stage_position, uint32_t first_query,
                               float (&scores)[kTiles][kTileColumns][4]) {
    const uint32_t lane = threadIdx.x % gpu::kWarpSize;
    const uint32_t query_row = first_query + lane % 16, query_column = lane / 16 * 8;
    const uint32_t key_row = lane % 16, key_octet = stage_position / 8 + lane / 16;
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t column = 0; column < kTileColumns; ++column) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) scores[tile][column][i] = 0;
      }
    }
#pragma unroll
    for (uint32_t dim = 0; dim < kDim; dim += 16) {
      uint32_t keys[kTileColumns / 2][4];
#pragma unroll
      for (uint32_t pair = 0; pair < kTileColumns / 2; ++pair) {
        gpu::LoadMatrices<true>(keys[pair], &stage.keys[key_octet + 2 * pair][(dim + key_row) * 8]);
      }
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (uint32_t part = 0; part < kParts; ++part) {
          uint32_t query[4];
          gpu::LoadMatrices(query,
                            &shared.queries[part][query_row + 16 * tile][dim + query_column]);
#pragma unroll
          for (uint32_t column = 0; column < kTileColumns; ++column) {
            float(&score)[4] = scores[tile][column];
            const uint32_t(&pair)[4] = keys[column / 2];
            gpu::Mma(score, query, {pair[column % 2 * 2], pair[column % 2 * 2 + 1]}, score);
          }
        }
      }
    }
  }

  __device__ static void Mask(uint32_t first_position, const uint32_t (&seen)[kTiles][2],
                              float (&scores)[kTiles][kTileColumns][4]) {
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t column = 0; column < kTileColumns; ++column) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t position = first_position + column * 8 + 2 * t + i % 2;
          if (position >= seen[tile][i / 2]) scores[tile][column][i] = -INFINITY;
        }
      }
    }
  }

  // Scores become 2^(score - maximum); what there is so far is scaled to the new maximum. Scaling
  // by one changes no bit, so it may be left out when no row of the warp has a new maximum.
  __device__ void Weigh(float (&scores)[kTiles][kTileColumns][4]) {
    float keep[kTiles][2];
    bool is_new = false;
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        float top = -INFINITY;
#pragma unroll
        for (uint32_t column = 0; column < kTileColumns; ++column) {
          top =
              fmaxf(top, fmaxf(scores[tile][column][2 * half], scores[tile][column][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(gpu::kFullWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(gpu::kFullWarp, top, 2));
        const float both = fmaxf(max[tile][half], top);
        const float base = FiniteBase(both);
        keep[tile][half] = exp2f(max[tile][half] - base);
        is_new |= both != max[tile][half];
        max[tile][half] = both;
        float added = 0;
#pragma unroll
        for (uint32_t column = 0; column < kTileColumns; ++column) {
#pragma unroll
          for (uint32_t i = 2 * half; i < 2 * half + 2; ++i) {
            const float weight = exp2f(scores[tile][column][i] - base);
            scores[tile][column][i] = weight;
            added += weight;
          }
        }
        sum[tile][half] = fmaf(sum[tile][half], keep[tile][half], added);
      }
    }
    if (__any_sync(gpu::kFullWarp, is_new) != 0) Scale(keep);
  }

  __device__ void Scale(const float (&keep)[kTiles][2]) {
#pragma unroll
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (uint32_t column = 0; column < kValueColumns; ++column) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) values[tile][column][i] *= keep[tile][i / 2];
      }
    }
  }

  template <class Stage>
  __device__ void AddValues(const Stage& stage, uint32_t stage_position,
                            const float (&weights)[kTiles][kTileColumns][4]) {
    const uint32_t lane = threadIdx.x % gpu::kWarpSize;
    const uint32_t dim = value_dim_ + lane / 16 * 8;
#pragma unroll
    for (uint32_t step = 0; step < kTilePositions / 16; ++step) {
      // The scores of two columns are the fragment of 16 positions.
      uint32_t parts[kTiles][4][kParts];
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const float(&column)[4] = weights[tile][2 * step + i / 2];
          SplitPair(column[i % 2 * 2], column[i % 2 * 2 + 1], parts[tile][i]);
        }
      }
      const uint32_t row = stage_position + step * 16 + lane % 16;
#pragma unroll
      for (uint32_t pair = 0; pair < kValueColumns / 2; ++pair) {
        uint32_t value[4];
        gpu::LoadMatrices<true>(value, &stage.values[row][dim + pair * 16]);
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (uint32_t part = 0; part < kParts; ++part) {
            const uint32_t weight[4] = {parts[tile][0][part], parts[tile][1][part],
                                        parts[tile][2][part], parts[tile][3][part]};
            float(&first)[4] = values[tile][2 * pair];
            float(&second)[4] = values[tile][2 * pair + 1];
            gpu::Mma(first, weight, {value[0], value[1]}, first);
            gpu::Mma(second, weight, {value[2], value[3]}, second);
          }
        }
      }
    }
  }

  uint32_t value_dim_;
};

}  // namespace cairn::cuda
