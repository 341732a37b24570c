// The machines of tests/cuda_machine.h as the emulator gives them.
#include <cuemu/emulator.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_machine.h"

namespace cairn {
namespace {

struct Schedule {
  const char* name;
  cuemu::ThreadOrder order;
  cuemu::AsyncCopyTime async_copy;
  unsigned jitter_us_max;
};
constexpr Schedule kSchedules[] = {
    {"forward_late", cuemu::ThreadOrder::kForward, cuemu::AsyncCopyTime::kLate, 0},
    {"reverse_early", cuemu::ThreadOrder::kReverse, cuemu::AsyncCopyTime::kEarly, 0},
    {"random_late", cuemu::ThreadOrder::kRandom, cuemu::AsyncCopyTime::kLate, 0},
    {"random_early", cuemu::ThreadOrder::kRandom, cuemu::AsyncCopyTime::kEarly, 50}};

}  // namespace

// Sanitizers have one machine, which is not the one that goes through all shapes: they take time.
std::vector<CudaMachine> CudaMachines() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {{kSchedules[3].name, 3}};
#else
  std::vector<CudaMachine> machines;
  for (const Schedule& schedule : kSchedules) {
    machines.push_back({schedule.name, static_cast<int>(machines.size())});
  }
  return machines;
#endif
}

void StartMachine(const CudaMachine& machine) {
  const Schedule& schedule = kSchedules[machine.index];
  cuemu::Configure({.order = schedule.order,
                    .seed = static_cast<uint64_t>(machine.index),
                    .async_copy = schedule.async_copy,
                    .device_memory_bytes = size_t{64} << 20,
                    .jitter_us_max = schedule.jitter_us_max});
}

Result<Backend> MakeCudaTestBackend(ComputeMode mode) { return cuda::MakeCudaBackend(mode); }

void ExpectNothingFound() {
  for (const std::string& report : cuemu::TakeReports()) ADD_FAILURE() << report;
}

}  // namespace cairn
