// Where tests of the CUDA backend run: the emulator's machines, each with another order of threads
// and of asynchronous copies, or a GPU. One of tests/cuda_emu/emulated_machine.cc and
// tests/on_device/device_machine.cc is linked.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/backend.h"

namespace cairn {

struct CudaMachine {
  std::string name;
  int index;  // among those that there are
};
inline std::ostream& operator<<(std::ostream& out, const CudaMachine& machine) {
  return out << machine.name;
}

inline std::string NameOfMachine(const testing::TestParamInfo<CudaMachine>& info) {
  return info.param.name;
}

std::vector<CudaMachine> CudaMachines();

// Everything of an earlier machine must be gone.
void StartMachine(const CudaMachine& machine);
Result<Backend> MakeCudaTestBackend(ComputeMode mode);
// What the machine found wrong beside errors: races, accesses outside of memory. Fails the test.
void ExpectNothingFound();

}  // namespace cairn
