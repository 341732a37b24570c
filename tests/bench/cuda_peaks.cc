#include "tests/bench/cuda_peaks.h"

#include <cublas_v2.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/product_dense.h"

namespace cairn {
namespace {

void Require(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  cairn::Require(Status(Code::kInternal, std::string("cuBLAS: ") + cublasGetStatusString(status)));
}

// Copies in both directions at once, on two streams, from a moment when both are idle.
double BothWaysSeconds(Device& device, size_t size_bytes, const Effort& effort) {
  const auto in = Require(device.NewStream(StreamUse::kCopy));
  const auto out = Require(device.NewStream(StreamUse::kCopy));
  const auto device_in = Require(device.Allocate(size_bytes));
  const auto device_out = Require(device.Allocate(size_bytes));
  const auto host_in = Require(device.AllocateHost(size_bytes));
  const auto host_out = Require(device.AllocateHost(size_bytes));
  std::vector<double> rounds;
  for (int round = 0; round <= effort.rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    in->Copy(device_in->data(), host_in->data(), size_bytes);
    out->Copy(host_out->data(), device_out->data(), size_bytes);
    Require(in->Synchronize());
    Require(out->Synchronize());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round > 0) rounds.push_back(took.count());  // the first brings pages into being
  }
  return Median(std::move(rounds));
}

// Random float16 of small magnitude: tensor cores draw less power, and run faster, on zeros.
std::vector<uint16_t> RandomHalves(size_t count) {
  Rng rng(5);
  std::vector<uint16_t> halves(count);
  for (uint16_t& half : halves) half = static_cast<uint16_t>(0x3000 | (rng.Next() & 0x83ff));
  return halves;
}

}  // namespace

CudaPeaks MeasureCudaPeaks(Device& device, const CudaPeakSizes& sizes, const Effort& effort) {
  CudaPeaks peaks;
  const auto stream = Require(device.NewStream(StreamUse::kCompute));
  {
    const auto from = Require(device.Allocate(sizes.copy_bytes));
    const auto to = Require(device.Allocate(sizes.copy_bytes));
    const double seconds = DeviceSeconds(
        *stream, effort, [&] { stream->Copy(to->data(), from->data(), sizes.copy_bytes); });
    peaks.copy_bytes_s = 2 * static_cast<double>(sizes.copy_bytes) / seconds;
  }
  const size_t bytes = sizes.pinned_bytes;
  {
    const auto on_device = Require(device.Allocate(bytes));
    const auto on_host = Require(device.AllocateHost(bytes));
    peaks.to_device_bytes_s = static_cast<double>(bytes) / DeviceSeconds(*stream, effort, [&] {
                                stream->Copy(on_device->data(), on_host->data(), bytes);
                              });
    peaks.to_host_bytes_s = static_cast<double>(bytes) / DeviceSeconds(*stream, effort, [&] {
                              stream->Copy(on_host->data(), on_device->data(), bytes);
                            });
  }
  peaks.both_ways_bytes_s = 2 * static_cast<double>(bytes) / BothWaysSeconds(device, bytes, effort);
  return peaks;
}

double MeasureDenseRate(Device& device, uint32_t rows, uint32_t outputs, uint32_t depth,
                        const Effort& effort) {
  const auto stream = Require(device.NewStream(StreamUse::kCompute));
  const auto halves = RandomHalves(size_t{std::max(rows, outputs)} * depth);
  const size_t x_bytes = size_t{rows} * depth * 2, weight_bytes = size_t{outputs} * depth * 2;
  const auto x = Require(device.Allocate(x_bytes));
  const auto weight = Require(device.Allocate(weight_bytes));
  const auto y = Require(device.Allocate(size_t{rows} * outputs * sizeof(float)));
  stream->Copy(x->data(), halves.data(), x_bytes);
  stream->Copy(weight->data(), halves.data(), weight_bytes);
  Require(stream->Synchronize());
  cublasHandle_t handle = nullptr;
  Require(cublasCreate(&handle));
  Require(cublasSetStream(handle, static_cast<cuda::CudaStream&>(*stream).handle()));
  const cuda::DenseProduct product = {.weight = reinterpret_cast<uint16_t*>(weight->data()),
                                      .x = reinterpret_cast<uint16_t*>(x->data()),
                                      .y = reinterpret_cast<float*>(y->data()),
                                      .output_count = outputs,
                                      .output_stride = outputs,
                                      .row_count = rows,
                                      .cols = depth};
  const double seconds =
      DeviceSeconds(*stream, effort, [&] { Require(cuda::MultiplyDense(handle, product)); });
  cublasDestroy(handle);
  return 2.0 * rows * outputs * depth / seconds;
}

}  // namespace cairn
