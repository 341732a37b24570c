// Kernels with deliberate bugs are found, and the report says where.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/cuda_emu/emulator_kernels.h"
#include "tests/cuda_emu/faulty_kernels.h"
#include "tests/cuda_emu/test_device.h"

namespace cairn::cuemu {
namespace {

using testing::AllOf;
using testing::HasSubstr;

#if defined(CAIRN_SANITIZED)
constexpr uint64_t kSeeds = 1;
#else
constexpr uint64_t kSeeds = 4;
#endif

struct Found {
  cudaError_t error;
  std::vector<std::string> reports;
  std::vector<float> out;
};

Found Try(Bug bug, const Settings& settings) {
  const TestMachine machine(settings);
  const TestStream stream;
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i + 1);
  const DeviceArray<float> in(values, stream);
  const DeviceArray<float> out(std::vector<float>(64), stream);
  const float* source = bug == Bug::kHostMemory ? values.data() : in.get();
  EXPECT_EQ(LaunchBug(bug, out.get(), source, stream.get()), cudaSuccess);
  Found found;
  found.error = stream.Synchronize();
  if (found.error == cudaSuccess) found.out = out.Read(stream);
  EXPECT_EQ(cudaGetLastError(), found.error);
  // Nothing works on a device with a sticky error.
  if (found.error != cudaSuccess) {
    void* address = nullptr;
    EXPECT_EQ(cudaMalloc(&address, 64), found.error);
  }
  ClearStickyError();
  found.reports = TakeReports();
  return found;
}

struct Case {
  Bug bug;
  cudaError_t error;
  const char* what;
  const char* kernel;
};

class EmulatorChecksTest : public testing::TestWithParam<Case> {};

TEST_P(EmulatorChecksTest, FindsTheBugInEveryOrder) {
  const Case& expected = GetParam();
  for (const ThreadOrder order :
       {ThreadOrder::kForward, ThreadOrder::kReverse, ThreadOrder::kRandom}) {
    for (uint64_t seed = 1; seed <= (order == ThreadOrder::kRandom ? kSeeds : 1); seed++) {
      Settings settings;
      settings.order = order;
      settings.seed = seed;
      const Found found = Try(expected.bug, settings);
      EXPECT_EQ(found.error, expected.error);
      ASSERT_EQ(found.reports.size(), 1u);
      EXPECT_THAT(found.reports[0], AllOf(HasSubstr(expected.what), HasSubstr(expected.kernel)));
    }
  }
}

constexpr Case kCases[] = {
    {Bug::kMissedBarrier, cudaErrorLaunchFailure, "__syncthreads", "faulty_kernels.cu"},
    {Bug::kDivergentBarriers, cudaErrorLaunchFailure, "different __syncthreads", "block (0,0,0)"},
    {Bug::kDivergentShuffle, cudaErrorLaunchFailure, "divergent warp", "faulty_kernels.cu"},
    {Bug::kLaneLeftOut, cudaErrorLaunchFailure, "leaves it out", "faulty_kernels.cu"},
    {Bug::kEndedLane, cudaErrorLaunchFailure, "ended", "faulty_kernels.cu"},
    {Bug::kForeignLane, cudaErrorAssert, "outside of its mask", "faulty_kernels.cu"},
    {Bug::kDeadlock, cudaErrorLaunchTimeout, "deadlock", "waiting at __syncthreads"},
    {Bug::kTrap, cudaErrorAssert, "__trap()", "thread (5,0,0)"},
    {Bug::kNeverWaited, cudaErrorLaunchFailure, "nobody waited for", "faulty_kernels.cu"},
    {Bug::kMisalignedAsync, cudaErrorMisalignedAddress, "cp.async", "faulty_kernels.cu"},
    {Bug::kStaticSharedTooLarge, cudaErrorLaunchOutOfResources, "48 KiB", "second"},
    {Bug::kLost, cudaErrorAssert, "__trap()", "block (3,0,0)"},
};

INSTANTIATE_TEST_SUITE_P(Bugs, EmulatorChecksTest, testing::ValuesIn(kCases));

#if defined(CAIRN_SANITIZED)

// Without the emulator's own instrumentation, NaN is what tells.
TEST(EmulatorChecks, AReadBeforeTheWaitGivesNaNWhenCopiesLandLate) {
  const Found late = Try(Bug::kReadBeforeWait, {});
  EXPECT_EQ(late.error, cudaSuccess);
  for (const float x : late.out) EXPECT_TRUE(std::isnan(x));
}

TEST(EmulatorChecks, SharedMemoryThatNobodyWroteIsNaN) {
  const Found found = Try(Bug::kSharedUnwritten, {});
  EXPECT_EQ(found.error, cudaSuccess);
  for (size_t i = 0; i < 64; i++) EXPECT_EQ(std::isnan(found.out[i]), i >= 32);
}

#else

constexpr Case kAccessCases[] = {
    {Bug::kReadBeforeWait, cudaErrorLaunchFailure, "before the wait", "faulty_kernels.cu"},
    {Bug::kSharedUnwritten, cudaErrorLaunchFailure, "nothing has written", "of buffer"},
    {Bug::kMissingBarrier, cudaErrorLaunchFailure, "shared memory", "faulty_kernels.cu"},
    {Bug::kMissingWarpSync, cudaErrorLaunchFailure, "a race", "of buffer, which has 256"},
    {Bug::kShuffleIsNoSync, cudaErrorLaunchFailure, "shared memory", "faulty_kernels.cu"},
    {Bug::kWriteAfterRead, cudaErrorLaunchFailure, "a race", "faulty_kernels.cu"},
    {Bug::kWriteAfterLanesRead, cudaErrorLaunchFailure, "a race", "faulty_kernels.cu"},
    {Bug::kSharedOutside, cudaErrorIllegalAddress, "outside of shared memory", "of buffer"},
    {Bug::kDynamicOutside, cudaErrorIllegalAddress, "byte 256 of dynamic", "thread (63,0,0)"},
    {Bug::kGlobalOutside, cudaErrorIllegalAddress, "outside of device memory", "faulty_kernels.cu"},
    {Bug::kHostMemory, cudaErrorIllegalAddress, "the host's memory", "faulty_kernels.cu"},
    {Bug::kMisaligned, cudaErrorMisalignedAddress, "misaligned", "faulty_kernels.cu"},
};

INSTANTIATE_TEST_SUITE_P(Accesses, EmulatorChecksTest, testing::ValuesIn(kAccessCases));

#endif

TEST(EmulatorChecks, ABlockThatWasGivenUpLeavesTheEmulatorUsable) {
  const TestMachine machine;
  const TestStream stream;
  const DeviceArray<float> out(std::vector<float>(256), stream);
  for (int round = 0; round < 3; round++) {
    EXPECT_EQ(LaunchBug(Bug::kLost, out.get(), out.get(), stream.get()), cudaSuccess);
    EXPECT_EQ(stream.Synchronize(), cudaErrorAssert);
    EXPECT_EQ(TakeReports().size(), 1u);
    ClearStickyError();
    ASSERT_EQ(LaunchBlockSum(out.get(), out.get(), 1, stream.get()), cudaSuccess);
    EXPECT_EQ(stream.Synchronize(), cudaSuccess);
  }
}

}  // namespace
}  // namespace cairn::cuemu
