// Small kernels that are right, for the emulator's own tests. Each launcher returns what the launch
// returned; pointers are device addresses.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace cairn::cuemu {

// out[global thread] = its number, by way of all built-in variables.
cudaError_t LaunchNumber(unsigned* out, dim3 grid, dim3 block, cudaStream_t stream);
// out[block] = the sum of in[block * 256 ...], by shuffles within warps and shared memory between.
cudaError_t LaunchBlockSum(float* out, const float* in, unsigned blocks, cudaStream_t stream);
// Results of each kind of shuffle, vote and reduction; kWarpResults words a lane.
inline constexpr unsigned kWarpResults = 12;
cudaError_t LaunchWarp(unsigned* out, cudaStream_t stream);
// Results of each kind of __syncthreads with a count, of 96 threads, of which `true_count` say yes.
cudaError_t LaunchVote(int* out, int true_count, cudaStream_t stream);
// c[16, 8] = a[16, 16] * b[8, 16]^T through cp.async, ldmatrix and mma; with `transposed`, b is
// [16, 8] and is loaded by ldmatrix.trans.
cudaError_t LaunchTile(float* c, const __half* a, const __half* b, bool transposed,
                       cudaStream_t stream);
// out[i] = the sum over `tile_count` tiles of in[tile][i], through two buffers that cp.async fills.
cudaError_t LaunchPipeline(float* out, const float* in, unsigned tile_count, cudaStream_t stream);
// Every thread of every block adds 1 to *counter, and the largest of its numbers to *largest.
cudaError_t LaunchAtomics(unsigned* counter, float* sum, unsigned* largest, unsigned blocks,
                          cudaStream_t stream);
// The threads of a block take turns, waiting on a word in shared memory: out[turn] = thread.
cudaError_t LaunchTurns(unsigned* out, unsigned threads, cudaStream_t stream);
// out[i] += 1
cudaError_t LaunchIncrement(float* out, unsigned count, cudaStream_t stream);
// Uses `bytes` of dynamic shared memory; `allow` asks for more than 48 KiB of it first.
cudaError_t LaunchDynamic(float* out, size_t bytes, bool allow, cudaStream_t stream);

}  // namespace cairn::cuemu
