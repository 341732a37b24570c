#include <cuda_fp16.h>
#include <cuemu/tensor.h>
#include <cuemu/thread.h>

#include <cstring>

#include "tests/cuda_emu/block_runner.h"

namespace cairn::cuemu {
namespace {

// What a lane brings to an mma, in float already, since other lanes read each of them many times.
struct MmaFragments {
  float a[4][2];
  float b[2][2];
};
static_assert(sizeof(MmaFragments) <= kPayloadBytes);

void ToFloats(uint32_t pair, float (&floats)[2]) {
  floats[0] = __half2float(__ushort_as_half(static_cast<uint16_t>(pair)));
  floats[1] = __half2float(__ushort_as_half(static_cast<uint16_t>(pair >> 16)));
}

const MmaFragments& FragmentsOf(const Collective& collective, unsigned lane) {
  return *reinterpret_cast<const MmaFragments*>(collective.payload[lane]);
}

}  // namespace

void LdMatrix(uint32_t* words, unsigned matrix_count, const void* row, bool transposed,
              Place place) {
  constexpr size_t kRowBytes = 16;
  const unsigned lane = current_thread->lane;
  if (lane < 8 * matrix_count) {
    if (reinterpret_cast<uintptr_t>(row) % kRowBytes != 0) {
      Trap("ldmatrix: a row is not on 16 bytes", place);
    }
#if defined(CAIRN_CUEMU_INSTRUMENTED)
    BlockRunner::Access(row, kRowBytes, kRowBytes, AccessKind::kRead, __builtin_return_address(0));
#endif
  }
  Collective& collective = MeetWarp(kFullMask, WarpOp::kLdMatrix, &row, sizeof row, place);
  for (unsigned matrix = 0; matrix < matrix_count; matrix++) {
    uint32_t word = 0;
    for (unsigned element = 0; element < 2; element++) {
      const unsigned outer = lane / 4;
      const unsigned inner = lane % 4 * 2 + element;
      const unsigned at_row = transposed ? inner : outer;
      const unsigned at_column = transposed ? outer : inner;
      const uint16_t* halves = nullptr;
      std::memcpy(&halves, collective.payload[matrix * 8 + at_row], sizeof halves);
      word |= uint32_t{halves[at_column]} << (16 * element);
    }
    words[matrix] = word;
  }
  LeaveWarp(collective);
}

void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                 Place place) {
  MmaFragments mine;
  for (unsigned i = 0; i < 4; i++) ToFloats(a[i], mine.a[i]);
  for (unsigned i = 0; i < 2; i++) ToFloats(b[i], mine.b[i]);
  Collective& collective = MeetWarp(kFullMask, WarpOp::kMma, &mine, sizeof mine, place);
  const unsigned lane = current_thread->lane;
  float result[4] = {c[0], c[1], c[2], c[3]};
  for (unsigned k = 0; k < 16; k++) {
    const unsigned quarter = k % 8 / 2;
    const MmaFragments& of_a = FragmentsOf(collective, lane / 4 * 4 + quarter);
    for (unsigned column = 0; column < 2; column++) {
      const MmaFragments& of_b = FragmentsOf(collective, (lane % 4 * 2 + column) * 4 + quarter);
      const float b_value = of_b.b[k / 8][k % 2];
      // Rows lane / 4 and lane / 4 + 8.
      result[column] += of_a.a[2 * (k / 8)][k % 2] * b_value;
      result[2 + column] += of_a.a[2 * (k / 8) + 1][k % 2] * b_value;
    }
  }
  std::memcpy(d, result, sizeof result);
  LeaveWarp(collective);
}

}  // namespace cairn::cuemu
