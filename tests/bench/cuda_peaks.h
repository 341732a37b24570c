// What a GPU can do at best, measured: the ceilings that cuda_bench holds its figures against.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "tests/bench/bench_figures.h"

namespace cairn {

struct CudaPeaks {
  double copy_bytes_s = 0;       // of device memory, read and written both counted
  double to_device_bytes_s = 0;  // from page-locked memory
  double to_host_bytes_s = 0;
  double both_ways_bytes_s = 0;  // of both together, at once
};
struct CudaPeakSizes {
  size_t copy_bytes;  // of each buffer
  size_t pinned_bytes;
};
CudaPeaks MeasureCudaPeaks(Device& device, const CudaPeakSizes& sizes, const Effort& effort);

// Multiply-adds of float16 with float32 sums, as cuBLAS makes them, in operations a second: of a
// product of [rows, depth] and [outputs, depth].
double MeasureDenseRate(Device& device, uint32_t rows, uint32_t outputs, uint32_t depth,
                        const Effort& effort);

}  // namespace cairn
