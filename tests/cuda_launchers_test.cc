// Kernels that are no operation of kernels/ops.h, launched by themselves: batched copies of blocks,
// and the highest logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/block_copies.h"
#include "kernels/cuda/top_k.h"
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

// As the host's sampler ranks them.
std::vector<RankedLogit> Highest(const float* row, uint32_t width, uint32_t k) {
  std::vector<RankedLogit> all(width);
  for (uint32_t id = 0; id < width; ++id) {
    float value = std::isnan(row[id]) ? -INFINITY : row[id];
    value = std::min(value, std::numeric_limits<float>::max());
    all[id] = {value, id};
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &RankedLogit::value);
  all.resize(k);
  return all;
}

TEST_P(CudaLaunchers, TopKRanksByValueThenById) {
  Rng rng(31);
  struct Case {
    uint32_t width, k;
  };
  // One part and several; what several keep is one part, or several again.
  for (const auto [width, k] : {Case{1, 1}, {5, 4}, {2048, 1}, {2049, 256}, {17000, 256}}) {
    const uint32_t row_count = width < 5000 ? 2 : 1;
    const TestStream stream;
    std::vector<float> logits;
    for (uint32_t i = 0; i < row_count * width; ++i) {  // many ties
      logits.push_back(static_cast<float>(rng.Below(width)) - static_cast<float>(width / 2));
    }
    if (width > 2000) {
      logits[7] = NAN, logits[9] = INFINITY, logits[11] = -INFINITY, logits[13] = -0.0f;
      logits[1500] = std::numeric_limits<float>::max();
    }
    const DeviceArray<float> rows(logits, stream);
    const DeviceArray<RankedLogit> out(row_count * k);
    const DeviceArray<uint64_t> scratch(TopKScratchCount(row_count, width, k) + 1);
    ASSERT_EQ(LaunchTopK({rows.get(), row_count, width, k, out.get(), scratch.get()}, stream.get()),
              cudaSuccess);
    const std::vector<RankedLogit> ranked = out.Read(stream);
    for (uint32_t row = 0; row < row_count; ++row) {
      const std::vector<RankedLogit> expected = Highest(&logits[row * width], width, k);
      for (uint32_t i = 0; i < k; ++i) {
        ASSERT_EQ(ranked[row * k + i].id, expected[i].id) << width << ", rank " << i;
        ASSERT_EQ(ranked[row * k + i].value, expected[i].value);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaLaunchers, testing::ValuesIn(CudaMachines()), NameOfMachine);

}  // namespace
}  // namespace cairn::cuda
