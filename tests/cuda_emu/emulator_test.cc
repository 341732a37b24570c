// Right kernels give right results, in every order of threads and either time of cp.async.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "tests/cuda_emu/emulator_kernels.h"
#include "tests/cuda_emu/test_device.h"

namespace cairn::cuemu {
namespace {

using Mode = std::tuple<ThreadOrder, AsyncCopyTime>;

class EmulatorTest : public testing::TestWithParam<Mode> {
 protected:
  static Settings FromParam() {
    Settings settings;
    std::tie(settings.order, settings.async_copy) = GetParam();
    return settings;
  }
  TestMachine machine_{FromParam()};
};

TEST_P(EmulatorTest, EveryThreadOfEveryBlockRunsOnce) {
  const TestStream stream;
  const DeviceArray<unsigned> out(3 * 2 * 2 * 7 * 3 * 2);
  ASSERT_EQ(LaunchNumber(out.get(), {3, 2, 2}, {7, 3, 2}, stream.get()), cudaSuccess);
  std::vector<unsigned> expected(out.count());
  std::iota(expected.begin(), expected.end(), 0u);
  EXPECT_EQ(out.Read(stream), expected);
}

TEST_P(EmulatorTest, BlocksSumThroughSharedMemory) {
  const TestStream stream;
  std::vector<float> values(256 * 5);
  std::iota(values.begin(), values.end(), 1.0f);
  const DeviceArray<float> in(values, stream);
  const DeviceArray<float> out(5);
  ASSERT_EQ(LaunchBlockSum(out.get(), in.get(), 5, stream.get()), cudaSuccess);
  std::vector<float> expected(5);
  for (size_t i = 0; i < values.size(); i++) expected[i / 256] += values[i];
  EXPECT_EQ(out.Read(stream), expected);  // whole numbers below 2^24: exact in any order
}

TEST_P(EmulatorTest, WarpIntrinsicsDoWhatTheGuideSays) {
  const TestStream stream;
  const DeviceArray<unsigned> out(32 * kWarpResults);
  ASSERT_EQ(LaunchWarp(out.get(), stream.get()), cudaSuccess);
  const std::vector<unsigned> results = out.Read(stream);
  for (unsigned lane = 0; lane < 32; lane++) {
    const unsigned* mine = results.data() + lane * kWarpResults;
    EXPECT_EQ(mine[0], 70u);
    EXPECT_EQ(mine[1], (lane / 8 * 8 + 3) * 10);
    EXPECT_EQ(mine[2], (lane ^ 5) * 10);
    EXPECT_EQ(mine[3], (lane < 16 ? lane : lane - 16) * 10);  // earlier groups may be read
    EXPECT_EQ(mine[4], (lane < 3 ? lane : lane - 3) * 10);
    EXPECT_EQ(mine[5], (lane % 8 < 2 ? lane : lane - 2) * 10);
    EXPECT_EQ(mine[6], (lane > 28 ? lane : lane + 3) * 10);
    EXPECT_EQ(mine[7], 0b01001001001001001001001001001001u);
    EXPECT_EQ(mine[8], 31u * 32 / 2);
    EXPECT_EQ(mine[9], 2u);
    EXPECT_EQ(mine[10], lane < 16 ? 15u : 16u);
    EXPECT_EQ(mine[11], 32u);
  }
}

TEST_P(EmulatorTest, BarriersCountVotes) {
  const TestStream stream;
  const DeviceArray<int> out(96);
  for (const int yes : {0, 1, 95, 96}) {
    ASSERT_EQ(LaunchVote(out.get(), yes, stream.get()), cudaSuccess);
    const int expected = yes * 4 + (yes == 96 ? 2 : 0) + (yes > 0 ? 1 : 0);
    EXPECT_EQ(out.Read(stream), std::vector<int>(96, expected));
  }
}

TEST_P(EmulatorTest, TensorCoreTileIsTheProduct) {
  const TestStream stream;
  Rng rng(7);
  std::vector<__half> a(256);
  std::vector<__half> b(128);
  // Small whole numbers: every sum is exact, so the result is one whatever the order.
  for (__half& x : a) x = __float2half(static_cast<float>(rng.Below(17)) - 8);
  for (__half& x : b) x = __float2half(static_cast<float>(rng.Below(17)) - 8);
  const DeviceArray<__half> device_a(a, stream);
  const DeviceArray<__half> device_b(b, stream);
  const DeviceArray<float> c(128);
  for (const bool transposed : {false, true}) {
    ASSERT_EQ(LaunchTile(c.get(), device_a.get(), device_b.get(), transposed, stream.get()),
              cudaSuccess);
    const std::vector<float> result = c.Read(stream);
    for (size_t row = 0; row < 16; row++) {
      for (size_t column = 0; column < 8; column++) {
        float expected = 0;
        for (size_t k = 0; k < 16; k++) {
          const __half of_b = transposed ? b[k * 8 + column] : b[column * 16 + k];
          expected += __half2float(a[row * 16 + k]) * __half2float(of_b);
        }
        EXPECT_EQ(result[row * 8 + column], expected) << row << " " << column;
      }
    }
  }
}

TEST_P(EmulatorTest, TwoBuffersTakeTurns) {
  const TestStream stream;
  for (const unsigned tile_count : {1u, 2u, 3u, 9u}) {
    std::vector<float> values(128 * tile_count);
    std::iota(values.begin(), values.end(), 1.0f);
    const DeviceArray<float> in(values, stream);
    const DeviceArray<float> out(32);
    ASSERT_EQ(LaunchPipeline(out.get(), in.get(), tile_count, stream.get()), cudaSuccess);
    std::vector<float> expected(32);
    for (size_t tile = 0; tile < tile_count; tile++) {
      for (size_t lane = 0; lane < 32; lane++) {
        for (size_t i = 0; i < 4; i++) {
          expected[lane] += values[tile * 128 + (lane * 4 + i * 32 + 1) % 128];
        }
      }
    }
    EXPECT_EQ(out.Read(stream), expected);
  }
}

TEST_P(EmulatorTest, AtomicsCountAcrossBlocks) {
  const TestStream stream;
  const DeviceArray<unsigned> counters(std::vector<unsigned>{0, 0}, stream);
  const DeviceArray<float> sum(std::vector<float>{0}, stream);
  ASSERT_EQ(LaunchAtomics(counters.get(), sum.get(), counters.get() + 1, 9, stream.get()),
            cudaSuccess);
  EXPECT_EQ(counters.Read(stream), (std::vector<unsigned>{9 * 64, 9 * 64 - 1}));
  EXPECT_EQ(sum.Read(stream)[0], 9 * 64);
}

TEST_P(EmulatorTest, AThreadMayWaitForAnother) {
  const TestStream stream;
  const DeviceArray<unsigned> out(40);
  ASSERT_EQ(LaunchTurns(out.get(), 40, stream.get()), cudaSuccess);
  std::vector<unsigned> expected(40);
  std::iota(expected.begin(), expected.end(), 100u);
  EXPECT_EQ(out.Read(stream), expected);
}

TEST_P(EmulatorTest, DynamicSharedMemoryHasItsLimits) {
  const TestStream stream;
  const DeviceArray<float> out(32);
  const auto expect_reversed = [&](size_t bytes) {
    const std::vector<float> result = out.Read(stream);
    for (size_t i = 0; i < 32; i++) EXPECT_EQ(result[i], static_cast<float>(bytes / 4 - 1 - i));
  };
  ASSERT_EQ(LaunchDynamic(out.get(), 48 << 10, false, stream.get()), cudaSuccess);
  expect_reversed(48 << 10);
  EXPECT_EQ(LaunchDynamic(out.get(), 64 << 10, false, stream.get()), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchDynamic(out.get(), 228 << 10, true, stream.get()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);  // of asking for so much, not of a launch
  ASSERT_EQ(LaunchDynamic(out.get(), 227 << 10, true, stream.get()), cudaSuccess);
  expect_reversed(227 << 10);
}

std::string NameOf(const testing::TestParamInfo<Mode>& mode) {
  static constexpr const char* kOrders[] = {"Forward", "Reverse", "Random"};
  const auto [order, time] = mode.param;
  return std::string(kOrders[static_cast<size_t>(order)]) +
         (time == AsyncCopyTime::kLate ? "Late" : "Early");
}

INSTANTIATE_TEST_SUITE_P(
    Modes, EmulatorTest,
    testing::Combine(testing::Values(ThreadOrder::kForward, ThreadOrder::kReverse,
                                     ThreadOrder::kRandom),
                     testing::Values(AsyncCopyTime::kLate, AsyncCopyTime::kEarly)),
    NameOf);

}  // namespace
}  // namespace cairn::cuemu
