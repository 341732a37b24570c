// Paged attention on the CPU, one function an instruction set. They differ in the last bits.
//
// The arithmetic of one query (one row, one head) is a fixed sequence of float32 operations:
//
//   q'[d]    = q[d] * log2(e), so that every exponential is a power of two
//   for each span of kAttentionSpan positions, in increasing order, with n positions visible:
//     s[t]   = sum over d, in order, of q'[d] * k[d][t]
//     m      = max over t < n of s[t]
//     p[t]   = 2^(s[t] - m)
//     l      = sum over t < n of p[t]: 8 sums over t mod 8, then a fixed tree
//     o[d]   = sum over t < n, in order, of p[t] * v[t][d]
//     (M, L, O) = (m, l, o) merged into the spans before, by log-sum-exp
//   out[d]   = O[d] / L
//
// Sums start from zero. A kernel computes this for many queries at once, yet never reorders it for
// one of them: hence the bits of a row do not depend on the batch, the chunk or the threads.
// A position that a row may not see adds exactly nothing, whatever finite bits its slot holds; a
// slot behind the last row of a segment may hold anything, a NaN included. Only the blocks that
// hold positions 0 .. last row of a segment are looked up.
//
// Log-sum-exp over spans: FlashAttention, Dao et al. 2022; Flash-Decoding, Dao et al. 2023.
//
// Shapes: head_dim a multiple of 8 up to kHeadDimMax, block_tokens a multiple of 16 that divides
// kAttentionSpan; anything else is a CHECK. Positions below kContextMax.
// Threads: the work of one call is shared out over the pool; the caller waits for it. Each thread
// keeps its scratch memory (at most about 1 MB plus 16 MB on the calling thread) until it ends.
#pragma once

#include "kernels/ops.h"

namespace cairn {

class ThreadPool;

inline constexpr uint32_t kHeadDimMax = 256;
inline constexpr uint32_t kContextMax = 1u << 20;

void PagedAttentionPortable(const PagedAttentionArgs& args, ThreadPool& pool);

#if defined(__x86_64__)
// Needs AVX2, FMA and F16C.
void PagedAttentionAvx2(const PagedAttentionArgs& args, ThreadPool& pool);
// Needs AVX-512 F, BW, DQ, VL and VNNI besides. Its bits are those of PagedAttentionAvx2.
void PagedAttentionAvx512(const PagedAttentionArgs& args, ThreadPool& pool);
#endif

}  // namespace cairn
