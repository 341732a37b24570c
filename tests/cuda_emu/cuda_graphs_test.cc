// When steps of decoding are recorded and when repeated, counted by what they ask of the runtime.
#include <cuemu/emulator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cuda_decoders.h"
#include "tests/cuda_emu/test_device.h"

namespace cairn {
namespace {

struct Calls {
  uint64_t launches, recordings, repetitions;

  static Calls Now() {
    return {cuemu::CallCount("cudaLaunchKernel"), cuemu::CallCount("cudaGraphInstantiate"),
            cuemu::CallCount("cudaGraphLaunch")};
  }
  Calls Since(const Calls& before) const {
    return {launches - before.launches, recordings - before.recordings,
            repetitions - before.repetitions};
  }
};

class CudaGraphs : public testing::Test {
 protected:
  // What the repeating decoder called in `count` steps.
  Calls Steps(const std::vector<uint32_t>& contexts, int count) {
    Calls all = {};
    for (int i = 0; i < count; ++i) {
      const Calls before = Calls::Now();
      Calls between = {};
      decoders_.Step(contexts, [&] { between = Calls::Now(); });
      const Calls made = between.Since(before);
      all = {all.launches + made.launches, all.recordings + made.recordings,
             all.repetitions + made.repetitions};
      one_by_one_ = Calls::Now().Since(between);
    }
    return all;
  }
  void ExpectSteps(const std::vector<uint32_t>& contexts, int count, uint64_t recordings,
                   uint64_t repetitions) {
    const Calls calls = Steps(contexts, count);
    EXPECT_EQ(calls.recordings, recordings) << contexts.size() << " contexts";
    EXPECT_EQ(calls.repetitions, repetitions) << contexts.size() << " contexts";
  }

  const cuemu::TestMachine machine_;
  CudaDecoders decoders_;
  Calls one_by_one_ = {};  // what the other decoder called in the latest step
};

TEST_F(CudaGraphs, AStepIsDoneThenRecordedThenRepeated) {
  decoders_.Join(0, 5);
  ExpectSteps({0}, 1, 0, 0);
  ExpectSteps({0}, 1, 1, 1);
  const Calls repeated = Steps({0}, 3);
  EXPECT_EQ(repeated.recordings, 0u);
  EXPECT_EQ(repeated.repetitions, 3u);
  EXPECT_EQ(repeated.launches, 6u);  // the batch crosses, and so do the logits
  EXPECT_EQ(one_by_one_.repetitions, 0u);
  EXPECT_EQ(one_by_one_.launches, 34u);

  // Larger passes move what kernels need beside their arguments, products and attention each its
  // own: recorded anew.
  decoders_.Join(1, 254);
  ExpectSteps({0}, 3, 1, 2);
  decoders_.Join(2, 20);
  decoders_.Join(3, 33);
  ExpectSteps({0}, 3, 1, 2);
  ExpectSteps({1, 0}, 5, 1, 4);  // one of them grows beyond a span
  ExpectSteps({0, 2, 1}, 3, 1, 2);
  ExpectSteps({3, 0, 1, 2}, 2, 0, 2);  // three are filled up to four
  ExpectSteps({2, 3}, 2, 0, 2);
  ExpectSteps({3}, 2, 0, 2);
  decoders_.ExpectEqualBlocks();
}

TEST_F(CudaGraphs, WhatCannotBeRecordedIsDoneOneByOne) {
  for (const char* function :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"}) {
    cuemu::FailCall(function, 1, cudaErrorNotSupported);
  }
  decoders_.Join(0, 5);
  decoders_.Join(1, 9);
  decoders_.Join(2, 12);
  for (const std::vector<uint32_t>& contexts : {std::vector<uint32_t>{0}, {0, 1}, {0, 1, 2}}) {
    ExpectSteps(contexts, 3, contexts.size() == 3 ? 1 : 0, 0);
  }
  decoders_.ExpectEqualBlocks();
}

}  // namespace
}  // namespace cairn
