// Kernels that are no operation of kernels/ops.h, launched by themselves: batched copies of blocks,
// and the highest logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

TEST_P(CudaLaunchers, BlockCopiesMoveEachPieceAndNothingElse) {
  for (const size_t size_bytes : {size_t{16}, size_t{4096}, size_t{16384}, size_t{20000}}) {
    const TestStream stream;
    constexpr uint32_t kCount = 5;
    const size_t pitch = size_bytes + 32;
    std::vector<unsigned char> bytes(kCount * pitch);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<unsigned char>(i * 7 + i / 256);
    const DeviceArray<unsigned char> from(bytes, stream);
    const DeviceArray<unsigned char> to(std::vector<unsigned char>(bytes.size(), 0xee), stream);
    std::vector<BlockCopy> copies;
    for (uint32_t i = 0; i < kCount; ++i) {  // in reverse, each 16 bytes into its piece
      const size_t target = (kCount - 1 - i) * pitch + 16;
      copies.push_back({reinterpret_cast<const std::byte*>(from.get() + i * pitch),
                        reinterpret_cast<std::byte*>(to.get() + target)});
    }
    const DeviceArray<BlockCopy> list(copies, stream);
    ASSERT_EQ(LaunchBlockCopies(list.get(), kCount, size_bytes, stream.get()), cudaSuccess);
    std::vector<unsigned char> expected(bytes.size(), 0xee);
    for (uint32_t i = 0; i < kCount; ++i) {
      std::copy_n(bytes.begin() + i * pitch, size_bytes,
                  expected.begin() + (kCount - 1 - i) * pitch + 16);
    }
    EXPECT_EQ(to.Read(stream), expected) << size_bytes;
  }
  EXPECT_EQ(LaunchBlockCopies(nullptr, 1, 24, nullptr), cudaErrorInvalidValue);
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
