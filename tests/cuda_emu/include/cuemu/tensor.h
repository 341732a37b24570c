// Tensor-core instructions, emulated from the fragment layouts of the PTX ISA (sections
// "Matrix Fragments for mma.m16n8k16" and "ldmatrix"). Sums are made in float in increasing k; the
// order, the width and the rounding of the hardware's sums are its own and are not modelled.
#pragma once

#include <cuda_fp16.h>
#include <cuemu/thread.h>
#include <cuemu/warp.h>

#include <cstring>

namespace cairn::cuemu {

// Lane l gives the address of row l % 8 of matrix l / 8: 8 halves, on 16 bytes. It receives of each
// matrix two neighbouring elements of one row, or with `transposed` of one column, as one word.
template <unsigned matrix_count>
void LdMatrix(uint32_t (&words)[matrix_count], const void* row, bool transposed, Place place) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) Trap("ldmatrix: a row is not on 16 bytes", place);
  Collective& collective = MeetWarp(kFullMask, WarpOp::kLdMatrix, &row, sizeof row, place);
  const unsigned lane = current_thread->lane;
  for (unsigned matrix = 0; matrix < matrix_count; matrix++) {
    uint32_t word = 0;
    for (unsigned element = 0; element < 2; element++) {
      const unsigned outer = lane / 4;
      const unsigned inner = lane % 4 * 2 + element;
      const unsigned at_row = transposed ? inner : outer;
      const unsigned at_column = transposed ? outer : inner;
      const auto* halves = FromLane<const uint16_t*>(collective, matrix * 8 + at_row);
      word |= uint32_t{halves[at_column]} << (16 * element);
    }
    words[matrix] = word;
  }
  LeaveWarp(collective);
}

struct MmaFragments {
  uint32_t a[4];
  uint32_t b[2];
};

inline float HalfOf(uint32_t word, unsigned index) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(word >> (16 * index))));
}

// d = a * b + c, with a 16 x 16 in rows, b 16 x 8 in columns, c and d 16 x 8, each in its
// fragments.
inline void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        const float (&c)[4], Place place) {
  const MmaFragments mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  Collective& collective = MeetWarp(kFullMask, WarpOp::kMma, &mine, sizeof mine, place);
  MmaFragments lanes[kWarpSize];
  for (unsigned i = 0; i < kWarpSize; i++) lanes[i] = FromLane<MmaFragments>(collective, i);
  const unsigned lane = current_thread->lane;
  float result[4];
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = lane / 4 + 8 * (i / 2);
    const unsigned column = lane % 4 * 2 + i % 2;
    float sum = c[i];
    for (unsigned k = 0; k < 16; k++) {
      const unsigned quarter = k % 8 / 2;
      const MmaFragments& of_a = lanes[row % 8 * 4 + quarter];
      const MmaFragments& of_b = lanes[column * 4 + quarter];
      sum += HalfOf(of_a.a[row / 8 + 2 * (k / 8)], k % 2) * HalfOf(of_b.b[k / 8], k % 2);
    }
    result[i] = sum;
  }
  std::memcpy(d, result, sizeof result);
  LeaveWarp(collective);
}

}  // namespace cairn::cuemu
