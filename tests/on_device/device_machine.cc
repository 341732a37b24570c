// The machine of tests/cuda_machine.h that a GPU is, and the program around tests that need it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_machine.h"

namespace cairn {

std::vector<CudaMachine> CudaMachines() { return {{"device", 0}}; }

void StartMachine(const CudaMachine&) {}

Result<Backend> MakeCudaTestBackend(ComputeMode mode) { return cuda::MakeCudaBackend(mode); }

void ExpectNothingFound() {}  // whoever wants that runs the program under compute-sanitizer

namespace {

constexpr int kSkipped = 77;  // what CTest is told

int Main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const Result<std::unique_ptr<Device>> device = cuda::MakeCudaDevice();
  if (!device.ok()) {
    std::printf("skipped, there is no GPU for it: %s\n", device.status().ToString().c_str());
    return kSkipped;
  }
  const DeviceInfo& info = (*device)->info();
  std::printf("on %s, %s\n", info.name.c_str(), info.instruction_set.c_str());
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
