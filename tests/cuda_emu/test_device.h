// For tests of the emulated device: a machine of their own, beside the arrays of
// tests/cuda_array.h.
#pragma once

#include <cuda_runtime.h>
#include <cuemu/emulator.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cuda_array.h"

namespace cairn::cuemu {

// A machine of its own for a scope; what was reported and not taken fails the test.
class TestMachine {
 public:
  explicit TestMachine(const Settings& settings = {}) { Configure(settings); }
  ~TestMachine() {
    for (const std::string& report : TakeReports()) ADD_FAILURE() << report;
    Configure({});
  }
  TestMachine(const TestMachine&) = delete;
  TestMachine& operator=(const TestMachine&) = delete;
};

}  // namespace cairn::cuemu
