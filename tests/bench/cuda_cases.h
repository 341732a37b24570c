// The parts of cuda_bench: each measures some operations, and prints a figure for each size.
//
// Shapes are those of an 8B model of the llama architecture (Llama 3: 4,096 wide, 32 heads on 8 KV
// heads of 128 dimensions, 14,336 in the feed-forward layer), or tiny ones that only show that
// everything runs.
#pragma once

#include "kernels/backend.h"
#include "tests/bench/bench_figures.h"
#include "tests/bench/cuda_peaks.h"

namespace cairn {

struct CaseOptions {
  bool tiny = false;
  Effort effort;
  CudaPeaks peaks;
};

// Decoding: KV bytes a second over the copy bandwidth, by context and rows.
void MeasureDecodeAttention(Backend& backend, const CaseOptions& options);
// A chunk of a prompt: operations a second over cuBLAS's rate in a product of as many operations.
void MeasurePrefillAttention(Backend& backend, ComputeMode mode, const CaseOptions& options);
// Products of few rows: bytes of weights a second over the copy bandwidth.
void MeasureProducts(Backend& backend, const CaseOptions& options);
// Blocks to the host and back over a plain copy of page-locked memory.
void MeasureBlockCopies(Backend& backend, const CaseOptions& options);

}  // namespace cairn
