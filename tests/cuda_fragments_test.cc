// Where mma, ldmatrix and cp.async put their elements, against plain loops. On the emulator this
// tests the emulator; on a device, whether the emulator is right.
#include "tests/cuda_fragments.h"

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "tests/cuda_array.h"
#include "tests/cuda_machine.h"

namespace cairn::cuda {
namespace {

class CudaFragments : public testing::TestWithParam<CudaMachine> {
 protected:
  void SetUp() override { StartMachine(GetParam()); }
  void TearDown() override { ExpectNothingFound(); }
};

// Whole numbers of at most `limit`, all of them different from their neighbours.
std::vector<float> WholeNumbers(size_t count, uint32_t limit, Rng& rng) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(rng.Below(2 * limit + 1)) - static_cast<float>(limit);
  }
  return values;
}

std::vector<uint16_t> ToHalves(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  halves.reserve(values.size());
  for (const float value : values) halves.push_back(__half_as_ushort(__float2half_rn(value)));
  return halves;
}

// d = a * b + c on the machine, with the elements of a and b as float16.
std::vector<float> Multiply(FragmentLoad load, const std::vector<float>& a,
                            const std::vector<float>& b, const std::vector<float>& c) {
  const TestStream stream;
  const DeviceArray<uint16_t> device_a(ToHalves(a), stream), device_b(ToHalves(b), stream);
  const DeviceArray<float> device_c(c, stream), device_d(c.size());
  EXPECT_EQ(
      LaunchFragmentProduct(load, {device_a.get(), device_b.get(), device_c.get(), device_d.get()},
                            stream.get()),
      cudaSuccess);
  return device_d.Read(stream);
}

std::vector<float> MultiplyByLoops(const std::vector<float>& a, const std::vector<float>& b,
                                   const std::vector<float>& c) {
  std::vector<float> d = c;
  for (uint32_t row = 0; row < kFragmentRows; ++row) {
    for (uint32_t column = 0; column < kFragmentColumns; ++column) {
      double sum = c[row * kFragmentColumns + column];
      for (uint32_t k = 0; k < kFragmentDepth; ++k) {
        sum += double{a[row * kFragmentDepth + k]} * b[k * kFragmentColumns + column];
      }
      d[row * kFragmentColumns + column] = static_cast<float>(sum);
    }
  }
  return d;
}

// As large as the products of kernels/cuda/product_format.h get: activations of 11 bits, weights of
// 8, and a sum that stays below 2^24. All of it is exact, whatever order the hardware adds in.
TEST_P(CudaFragments, ProductsOfWholeNumbersAreExact) {
  Rng rng(41);
  for (const FragmentLoad load :
       {FragmentLoad::kPlain, FragmentLoad::kRows, FragmentLoad::kTransposed}) {
    for (const uint32_t limit : {3u, 2047u}) {
      const auto a = WholeNumbers(kFragmentRows * kFragmentDepth, 128, rng);
      const auto b = WholeNumbers(kFragmentDepth * kFragmentColumns, limit, rng);
      const auto c = WholeNumbers(kFragmentRows * kFragmentColumns, 1u << 22, rng);
      EXPECT_EQ(Multiply(load, a, b, c), MultiplyByLoops(a, b, c))
          << "load " << static_cast<int>(load) << " limit " << limit;
    }
  }
}

// One element of a and one of b are not zero: exactly one element of d is theirs.
TEST_P(CudaFragments, EachElementMeetsItsOwn) {
  Rng rng(42);
  for (const FragmentLoad load :
       {FragmentLoad::kPlain, FragmentLoad::kRows, FragmentLoad::kTransposed}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<float> a(kFragmentRows * kFragmentDepth), b(kFragmentDepth * kFragmentColumns);
      const std::vector<float> c(kFragmentRows * kFragmentColumns);
      const size_t row = rng.Below(kFragmentRows), column = rng.Below(kFragmentColumns);
      const size_t k = rng.Below(kFragmentDepth);
      a[row * kFragmentDepth + k] = 3;
      b[k * kFragmentColumns + column] = 5;
      std::vector<float> expected = c;
      expected[row * kFragmentColumns + column] = 15;
      ASSERT_EQ(Multiply(load, a, b, c), expected) << row << ", " << k << ", " << column;
    }
  }
}

// What docs/CUDA.md allows for float weights: no more than 16 additions, each truncated to float32.
TEST_P(CudaFragments, ProductsOfFloatsAreWithinTheirBound) {
  Rng rng(43);
  std::vector<float> a(kFragmentRows * kFragmentDepth), b(kFragmentDepth * kFragmentColumns);
  for (float& value : a) value = __half2float(__float2half_rn(float(rng.Uniform() - 0.5)));
  for (float& value : b) value = __half2float(__float2half_rn(float(rng.Uniform() - 0.5)));
  const std::vector<float> c(kFragmentRows * kFragmentColumns);
  const std::vector<float> d = Multiply(FragmentLoad::kRows, a, b, c);
  const std::vector<float> expected = MultiplyByLoops(a, b, c);
  for (size_t i = 0; i < d.size(); ++i) {
    double magnitude = 0;
    for (uint32_t k = 0; k < kFragmentDepth; ++k) {
      magnitude += std::fabs(a[i / kFragmentColumns * kFragmentDepth + k] *
                             b[k * kFragmentColumns + i % kFragmentColumns]);
    }
    ASSERT_NEAR(d[i], expected[i], (2 * 16 + 1) * 0x1p-24 * magnitude) << i;
  }
}

TEST_P(CudaFragments, MatricesComeAsDocumented) {
  std::vector<uint16_t> matrices(4 * 8 * 8);
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i] = static_cast<uint16_t>(i);
  for (const bool transposed : {false, true}) {
    const TestStream stream;
    const DeviceArray<uint16_t> from(matrices, stream);
    const DeviceArray<uint32_t> words(32 * 4);
    ASSERT_EQ(LaunchLoadMatrices(transposed, from.get(), words.get(), stream.get()), cudaSuccess);
    const std::vector<uint32_t> loaded = words.Read(stream);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t matrix = 0; matrix < 4; ++matrix) {
        const uint32_t outer = lane / 4, inner = lane % 4 * 2;
        const uint32_t first = matrix * 64 + (transposed ? inner * 8 + outer : outer * 8 + inner);
        const uint32_t second = first + (transposed ? 8 : 1);
        EXPECT_EQ(loaded[lane * 4 + matrix], first | second << 16) << lane << ", " << matrix;
      }
    }
  }
}

TEST_P(CudaFragments, CopiesThatTakeNothingFillZeros) {
  std::vector<uint4> values(32);
  for (uint32_t i = 0; i < 32; ++i) values[i] = {i + 1, i + 2, i + 3, i + 4};
  const TestStream stream;
  const DeviceArray<uint4> from(values, stream), to(values.size());
  ASSERT_EQ(LaunchCopyAsync(from.get(), to.get(), stream.get()), cudaSuccess);
  const std::vector<uint4> landed = to.Read(stream);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint4 expected = i % 2 == 0 ? values[i] : uint4{};
    EXPECT_TRUE(landed[i].x == expected.x && landed[i].y == expected.y &&
                landed[i].z == expected.z && landed[i].w == expected.w)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaFragments, testing::ValuesIn(CudaMachines()), NameOfMachine);

}  // namespace
}  // namespace cairn::cuda
