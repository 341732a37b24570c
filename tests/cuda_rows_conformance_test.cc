// The row-wise CUDA kernels against the double-precision reference, and their row-local law.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/cpu/top_logits.h"
#include "tests/cuda_conformance.h"

namespace cairn {
namespace {

constexpr uint32_t kRows = 5;

class CudaRows : public CudaConformance {};

TEST_P(CudaRows, EmbedReadsRowsOfThePackedTable) {
  Rng rng(7);
  constexpr uint32_t kTableRows = 37;
  for (const TensorType type : kTensorTypes) {
    for (const uint32_t cols : {32u, 96u, 1088u}) {
      const auto matrix = reference::RandomMatrix(type, kTableRows, cols, rng);
      const reference::Decoded decoded = reference::Decode(matrix);
      const auto table = *ops().Pack(matrix.view());
      std::vector<BatchRow> rows;
      for (const uint32_t token : {0u, 36u, 7u, 8u, 15u, 16u, 7u}) rows.push_back({.token = token});
      Floats out(*this, std::vector<float>(rows.size() * cols, NAN));
      ops().Embed({table.get(), &SetBatch(rows), out.data()}, stream());
      const std::vector<float> values = out.Read();
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t element = rows[i / cols].token * cols + i % cols;
        // One rounding where a scale is multiplied by more than 13 bits or there is an offset.
        const bool is_exact = type != TensorType::kQ4_1;
        const double bound = is_exact ? 0 : kUlp * decoded.magnitudes[element];
        ASSERT_NEAR(values[i], decoded.values[element], bound) << TraitsOf(type).name << " " << i;
      }
    }
  }
}

// The sum of squares has at most width / 256 + 15 roundings in a row, and the root halves its
// relative error; mean, epsilon, root, quotient and two products add six more.
double RmsNormBound(double out, uint32_t width) {
  return std::fabs(out) * ((width / 256.0 + 15) / 2 + 6) * kUlp;
}

TEST_P(CudaRows, RmsNormMatchesTheReferenceAndIsRowLocal) {
  Rng rng(8);
  constexpr float kEpsilon = 1e-5f;
  for (const uint32_t width : {1u, 7u, 8u, 31u, 40u, 576u, 2051u}) {
    const std::vector<float> x = reference::RandomFloats(kRows * width, 3.0, rng);
    const std::vector<float> delta = reference::RandomFloats(x.size(), 1.0, rng);
    const std::vector<float> gain_values = reference::RandomFloats(width, 1.0, rng);
    Floats gain(*this, gain_values);
    for (const bool has_delta : {false, true}) {
      Floats batch_x(*this, x), batch_out(*this, delta);  // the output may take delta's place
      ops().RmsNorm({batch_x.data(), has_delta ? batch_out.data() : nullptr, gain.data(),
                     batch_out.data(), kRows, width, kEpsilon},
                    stream());
      Floats lone_x(*this, x), lone_delta(*this, delta), lone_out(*this, delta);
      for (uint32_t row = 0; row < kRows; ++row) {
        const size_t at = size_t{row} * width;
        ops().RmsNorm({lone_x.data(at), has_delta ? lone_delta.data(at) : nullptr, gain.data(),
                       lone_out.data(at), 1, width, kEpsilon},
                      stream());
      }
      const std::vector<float> out = lone_out.Read(), added = lone_x.Read();
      EXPECT_TRUE(SameBits(batch_x.Read(), added));
      EXPECT_TRUE(SameBits(batch_out.Read(), out)) << width;
      for (uint32_t row = 0; row < kRows; ++row) {
        const size_t at = size_t{row} * width;
        const auto expected = reference::RmsNorm(
            {&x[at], width}, {&delta[at], has_delta ? width : 0}, gain_values, kEpsilon);
        for (uint32_t i = 0; i < width; ++i) {
          ASSERT_EQ(added[at + i], static_cast<float>(expected.x[i]));
          ASSERT_NEAR(out[at + i], expected.out[i], RmsNormBound(expected.out[i], width));
        }
      }
    }
  }
}

TEST_P(CudaRows, SwiGluMatchesTheReferenceAndIsRowLocal) {
  Rng rng(9);
  for (const uint32_t width : {1u, 5u, 8u, 67u, 1536u}) {
    std::vector<float> gate = reference::RandomFloats(kRows * width, 4.0, rng);
    const std::vector<float> up = reference::RandomFloats(gate.size(), 1.0, rng);
    const float extremes[] = {0.0f, -0.0f, -86.9f, -88.0f, -1000.0f, 86.9f, 88.0f, 1000.0f, 1e-30f};
    std::copy_n(extremes, std::min(std::size(extremes), gate.size()), gate.begin());
    Floats device_gate(*this, gate), device_up(*this, up), lone(*this, gate);
    for (size_t i = 0; i < gate.size(); i += width) {
      ops().SwiGlu({device_gate.data(i), device_up.data(i), lone.data(i), 1, width}, stream());
    }
    ops().SwiGlu({device_gate.data(), device_up.data(), device_gate.data(), kRows, width},
                 stream());  // the output may take the gate's place
    const std::vector<float> out = lone.Read();
    EXPECT_TRUE(SameBits(device_gate.Read(), out)) << width;
    for (size_t i = 0; i < gate.size(); ++i) {
      // Exponential 2 units in the last place, which are up to 4 roundings; sum, quotient and
      // product 1 each.
      const double expected = reference::SwiGlu(gate[i], up[i]);
      ASSERT_NEAR(out[i], expected, 7 * kUlp * std::fabs(expected) + 1e-34) << gate[i];
    }
  }
}

// One part of a row and several; what several keep is one part, or several again.
TEST_P(CudaRows, TopLogitsAreThoseOfTheCpu) {
  Rng rng(31);
  struct Case {
    uint32_t width, count;
  };
  for (const auto [width, count] : {Case{1, 1},
                                    {5, 4},
                                    {5, 1},
                                    {2048, 1},
                                    {2049, kTopLogitsMax},
                                    {17000, kTopLogitsMax},
                                    {17000, 1}}) {
    if (!is_thorough() && width > 2049) continue;
    const uint32_t row_count = width < 5000 ? 2 : 1;
    std::vector<float> values;
    for (uint32_t i = 0; i < row_count * width; ++i) {  // many ties
      values.push_back(static_cast<float>(rng.Below(width)) - 0.5f * static_cast<float>(width));
    }
    if (width > 2000) {
      values[7] = NAN, values[9] = INFINITY, values[11] = -INFINITY, values[13] = -0.0f;
      values[1500] = std::numeric_limits<float>::max();
    }
    Floats logits(*this, values);
    const size_t out_count = size_t{row_count} * count;
    Array<RankedLogit> out(*this, std::vector<RankedLogit>(out_count));
    ops().TopLogits({logits.data(), row_count, width, count, out.data()}, stream());
    std::vector<RankedLogit> expected(out_count);
    SelectTopLogits({values.data(), row_count, width, count, expected.data()});
    EXPECT_TRUE(SameBits(out.Read(), expected)) << width << ", " << count;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaRows,
                         testing::Combine(testing::ValuesIn(CudaMachines()),
                                          testing::Values(ComputeMode::kExact)),
                         MachineName);

}  // namespace
}  // namespace cairn
