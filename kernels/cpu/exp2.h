// 2^x for x <= 0, as attention needs it: the polynomial, and its evaluation in plain C++
// (kernels/cpu/simd_avx2.h has the one with vectors).
//
// x = n + r with n an integer and |r| <= 1/2; 2^r = 1 + c1 r + ... + c6 r^6, a minimax polynomial
// of relative error 2.6e-9, found by Remez's exchange with the first coefficient held at 1 so that
// 2^0 is exact. With the rounding of float32 the relative error is below 1e-7.
#pragma once

#include <bit>
#include <cstdint>

namespace cairn {

inline constexpr float kExp2Coefficients[] = {0.693147242f,   0.240226522f,   0.0555031039f,
                                              0.00961769279f, 0.00134066434f, 0.000155946778f};
// Below it the result is exactly 0.
inline constexpr float kExp2Min = -127.0f;
// Added to |x| < 2^22 it leaves the nearest integer in the low bits of the sum.
inline constexpr float kRoundingShift = 0x1.8p23f;
inline constexpr float kLog2E = 1.44269504f;

// For x in [-inf, 0]; a NaN gives 0. In (-127, -126) the result is less than 2^-126, and no more is
// said of it.
inline float Exp2NonPositive(float x) {
  x = x > kExp2Min ? x : kExp2Min;
  const float shifted = x + kRoundingShift;
  const float r = x - (shifted - kRoundingShift);
  float sum = kExp2Coefficients[5];
  for (int i = 4; i >= 0; --i) sum = sum * r + kExp2Coefficients[i];
  sum = sum * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(sum) + exponent);
}

}  // namespace cairn
