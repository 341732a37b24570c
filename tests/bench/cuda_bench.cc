// What the CUDA kernels reach of what the GPU can do: each figure is one line of JSON, with the
// ratio to a ceiling that was measured in the same run, and what that ratio should be at least.
//
//   cuda_bench [--tiny] [PART...]
//   PART: peaks, attention, prefill, products, copies; all of them when none is named
//
// tools/gpu_check.sh runs it and draws the table. --tiny runs every part with the smallest sizes,
// as the twin of this program on the emulator does in any case.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/bench_backend.h"
#include "tests/bench/cuda_cases.h"

namespace cairn {
namespace {

const std::vector<std::string> kParts = {"peaks", "attention", "prefill", "products", "copies"};

void PrintPeaks(Device& device, const CaseOptions& options) {
  const CudaPeaks& peaks = options.peaks;
  Print({.name = "copies of device memory, reads and writes",
         .value = peaks.copy_bytes_s * 1e-9,
         .unit = "GB/s"});
  Print(
      {.name = "from page-locked memory", .value = peaks.to_device_bytes_s * 1e-9, .unit = "GB/s"});
  Print({.name = "to page-locked memory", .value = peaks.to_host_bytes_s * 1e-9, .unit = "GB/s"});
  Print({.name = "both ways at once, together",
         .value = peaks.both_ways_bytes_s * 1e-9,
         .unit = "GB/s"});
  const uint32_t side = options.tiny ? 16 : 8192;
  Print({.name = "cuBLAS, float16, " + std::to_string(side) + " cubed",
         .value = MeasureDenseRate(device, side, side, side, options.effort) * 1e-12,
         .unit = "TFLOP/s"});
}

int Usage() {
  std::fprintf(stderr, "usage: cuda_bench [--tiny] [PART...]\nPART:");
  for (const std::string& part : kParts) std::fprintf(stderr, " %s", part.c_str());
  std::fprintf(stderr, "\n");
  return 2;
}

int Main(int argc, char** argv) {
  CaseOptions options = {.tiny = IsEmulated(), .effort = {}, .peaks = {}};
  std::vector<std::string> parts;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--tiny") {
      options.tiny = true;
    } else if (std::ranges::count(kParts, argument) > 0) {
      parts.push_back(argument);
    } else {
      return Usage();
    }
  }
  if (parts.empty()) parts = kParts;
  if (options.tiny) options.effort = kOneCall;
  const auto wants = [&](const char* part) { return std::ranges::count(parts, part) > 0; };

  Backend exact = Require(MakeBenchBackend(ComputeMode::kExact, 0));
  const CudaPeakSizes sizes =
      options.tiny ? CudaPeakSizes{4096, 4096} : CudaPeakSizes{size_t{1} << 30, size_t{256} << 20};
  options.peaks = MeasureCudaPeaks(*exact.device, sizes, options.effort);
  if (wants("peaks")) PrintPeaks(*exact.device, options);
  if (wants("attention")) MeasureDecodeAttention(exact, options);
  if (wants("prefill")) {
    MeasurePrefillAttention(exact, ComputeMode::kExact, options);
    Backend fast = Require(MakeBenchBackend(ComputeMode::kFast, 0));
    MeasurePrefillAttention(fast, ComputeMode::kFast, options);
  }
  if (wants("products")) MeasureProducts(exact, options);
  if (wants("copies")) MeasureBlockCopies(exact, options);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
