// Tensor-core instructions, emulated from the fragment layouts of the PTX ISA (sections
// "Matrix Fragments for mma.m16n8k16" and "ldmatrix"). Sums are made in float in increasing k; the
// order, the width and the rounding of the hardware's sums are its own and are not modelled.
#pragma once

#include <cuemu/thread.h>

namespace cairn::cuemu {

// Lane l gives the address of row l % 8 of matrix l / 8: 8 halves, on 16 bytes. It receives of each
// of the 2 or 4 matrices two neighbouring elements of one row, or with `transposed` of one column,
// as one word.
void LdMatrix(uint32_t* words, unsigned matrix_count, const void* row, bool transposed,
              Place place);

template <unsigned matrix_count>
void LdMatrix(uint32_t (&words)[matrix_count], const void* row, bool transposed, Place place) {
  LdMatrix(words, matrix_count, row, transposed, place);
}

// d = a * b + c, with a 16 x 16 in rows, b 16 x 8 in columns, c and d 16 x 8, each in its
// fragments.
void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                 Place place);

}  // namespace cairn::cuemu
