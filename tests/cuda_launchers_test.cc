// Kernels that are no operation of kernels/ops.h, launched by themselves: batched copies of blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/cuda/block_copies.h"
#include "tests/cuda_array.h"
#include "tests/cuda_machine.h"

namespace cairn::cuda {
namespace {

class CudaLaunchers : public testing::TestWithParam<CudaMachine> {
 protected:
  void SetUp() override { StartMachine(GetParam()); }
  void TearDown() override { ExpectNothingFound(); }
};

TEST_P(CudaLaunchers, BlockCopiesMoveEachPartAndNothingElse) {
  const TestStream stream;
  constexpr size_t kPitch = 20000 + 32;
  constexpr size_t kSizes[] = {16, 4096, 16384, 16400, 20000};
  const size_t count = kLaunchPartsMax + 3;  // two launches
  std::vector<unsigned char> bytes(count * kPitch);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 256);
  std::vector<unsigned char> expected(bytes.size(), 0xee);
  const DeviceArray<unsigned char> from(bytes, stream);
  const DeviceArray<unsigned char> to(expected, stream);
  std::vector<CopyPart> parts;
  for (size_t i = 0; i < count; ++i) {  // in reverse, each 16 bytes into its place
    const size_t source = i * kPitch, target = (count - 1 - i) * kPitch + 16;
    const size_t size_bytes = i < 10 ? kSizes[i % std::size(kSizes)] : 32;
    parts.push_back({to.get() + target, from.get() + source, size_bytes});
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(source), size_bytes,
                expected.begin() + static_cast<ptrdiff_t>(target));
  }
  ASSERT_EQ(LaunchBlockCopies(parts, stream.get()), cudaSuccess);
  EXPECT_EQ(to.Read(stream), expected);
}

INSTANTIATE_TEST_SUITE_P(All, CudaLaunchers, testing::ValuesIn(CudaMachines()), NameOfMachine);

}  // namespace
}  // namespace cairn::cuda
