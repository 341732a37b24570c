// CUDA's loads, fast mathematics and bit operations that the toolkit has for a device only. Fast
// versions are computed exactly here: the emulator says nothing about their errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace cairn::cuemu {

// Byte i of the result is byte (selector >> 4i) & 7 of {y, x}, or its sign eight times with bit 3.
inline unsigned PickBytes(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; i++) {
    const unsigned choice = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7))) & 0xff;
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

// c plus the dot product of two vectors of four signed bytes.
inline int DotBytes(int a, int b, int c) {
  for (unsigned i = 0; i < 4; i++) {
    c += static_cast<int8_t>(static_cast<unsigned>(a) >> (8 * i)) *
         static_cast<int8_t>(static_cast<unsigned>(b) >> (8 * i));
  }
  return c;
}

}  // namespace cairn::cuemu

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldca(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.0f), 1.0f); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  return ::cairn::cuemu::PickBytes(x, y, selector);
}
inline int __dp4a(int a, int b, int c) { return ::cairn::cuemu::DotBytes(a, b, c); }

inline __half __hfma(__half a, __half b, __half c) {
  // A product of two halves is exact in float, and so double rounding is the only one that is left:
  // in double the sum is exact too for all but far-apart exponents.
  return __double2half(
      std::fma(double{__half2float(a)}, double{__half2float(b)}, double{__half2float(c)}));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                        __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
