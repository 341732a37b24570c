// Products by the CUDA kernels against the double-precision reference, and their row-local law.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_conformance.h"

namespace cairn {
namespace {

struct Shape {
  uint32_t rows;
  uint32_t cols;
};
// Both sides of panels of 16 outputs and tiles of 64, of blocks of 64 k (one half full), and fewer
// and more blocks than the eight parts of k.
constexpr Shape kShapes[] = {{1, 32}, {15, 64}, {17, 96}, {33, 608}, {65, 576}};
constexpr Shape kFloatShapes[] = {{1, 1}, {15, 7}, {16, 33}, {17, 63}, {33, 65}};
// Both sides of the row counts that each kernel takes, and of a tile of 64 rows.
constexpr uint32_t kRowCounts[] = {1, 7, 8, 9, 16, 17, 32, 33, 65};
constexpr uint32_t kRowCountMax = 65;

constexpr double kActivationLimit = 2047.0 * 2048.0;

// How far one output may be from the exact product, as a bound that no input can pass.
//
// F32: at most cols / 32 fused products and five sums in a row, each relative to a partial sum that
// is at most sum |w x|:                     (cols / 32 + 7) ulp * sum |w x|.
// The others: an activation is off by half a step of its group, the step being max |x| / 4.19e6
// (0.51 instead of 0.5 for the rounding of x / step):
//                                           sum over groups of 0.51 step * sum |w|.
// For quantised weights the sums of a group are exact; joining hi and lo, the scale of the group
// and that of the row are 4 roundings, and each group joins by one fused product more (two with an
// offset, whose sum of activations has two roundings of its own); the parts add 8:
//                                           (2 groups + 16) ulp * sum magnitude * |x|.
// For floats a group's 32 products are summed by the hardware in 4 steps, hi and lo, which may
// truncate: 2 ulp each, and no more than 16 additions are made in a step:
//                                           (2 groups + 16 + 4 * 2 * 16) ulp * sum |w x|.
double MatMulBound(TensorType type, std::span<const double> weight,
                   std::span<const double> magnitude, std::span<const float> x) {
  const size_t cols = x.size();
  double absolute = 0;
  for (size_t k = 0; k < cols; ++k) absolute += magnitude[k] * std::fabs(x[k]);
  if (type == TensorType::kF32) {
    return (static_cast<double>(cols) / 32 + 7) * kUlp * absolute;
  }
  const bool is_quantised = TraitsOf(type).group_elements > 1;
  const double group_count = std::ceil(static_cast<double>(cols) / kQuantGroup);
  double bound = 1.01 * (2 * group_count + 16 + (is_quantised ? 0 : 128)) * kUlp * absolute;
  for (size_t group = 0; group < cols; group += kQuantGroup) {
    double max = 0, weights = 0;
    for (size_t k = group; k < std::min<size_t>(cols, group + kQuantGroup); ++k) {
      max = std::max(max, std::fabs(double{x[k]}));
      weights += std::fabs(weight[k]);
    }
    bound += 0.51 * max / kActivationLimit * weights;
  }
  return bound;
}

// The typical error: independent roundings add up as a random walk. A step's rounding has a
// deviation of max |x| / 4.19e6 / sqrt(12), 1.5e-7 of the deviation of x in a group of normal
// numbers, and sums of some tens of groups as much again.
constexpr double kRelativeRmsMax = 5e-7;

// In fast mode more than 64 rows go to cuBLAS: weights and activations are rounded to float16,
// 2^-11 of each, and the offset's sum before to float32; the products are exact, and cols sums may
// be truncated.
double DenseBound(std::span<const double> weight, std::span<const double> magnitude,
                  std::span<const float> x) {
  double products = 0, absolute = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    products += std::fabs(weight[k] * x[k]);
    absolute += magnitude[k] * std::fabs(x[k]);
  }
  const double sums = 2 * static_cast<double>(x.size()) + 2;
  return 1.01 * (2 * 0x1p-11 * products + sums * kUlp * absolute);
}
// Two roundings of a deviation of about 1.8e-4.
constexpr double kDenseRelativeRmsMax = 4e-4;

class CudaMatMul : public CudaConformance {
 protected:
  // Rows [begin, begin + row_count) of x.
  std::vector<float> Run(const Weight& weight, Floats& x, uint32_t begin, uint32_t row_count,
                         bool fine = false) {
    Floats y(*this, std::vector<float>(size_t{row_count} * weight.rows(), NAN));
    const MatMulOutput outputs[] = {{.weight = &weight, .y = y.data(), .fine = fine}};
    ops().MatMul({x.data(size_t{begin} * weight.cols()), row_count, outputs}, stream());
    return y.Read();
  }
  void CheckShape(TensorType type, const Shape& shape, Rng& rng);
  void CheckRow(const reference::Matrix& matrix, const reference::Decoded& decoded,
                std::span<const float> x, std::span<const float> y);

  double error_squares_ = 0, squares_ = 0;
};

void CudaMatMul::CheckRow(const reference::Matrix& matrix, const reference::Decoded& decoded,
                          std::span<const float> x, std::span<const float> y) {
  const std::vector<double> expected = reference::MatMul(decoded, matrix.rows, matrix.cols, x);
  for (size_t output = 0; output < matrix.rows; ++output) {
    const double error = std::fabs(y[output] - expected[output]);
    const auto values = std::span(decoded.values).subspan(output * matrix.cols, matrix.cols);
    const auto sizes = std::span(decoded.magnitudes).subspan(output * matrix.cols, matrix.cols);
    ASSERT_LE(error, MatMulBound(matrix.type, values, sizes, x)) << "output " << output;
    error_squares_ += error * error;
    squares_ += expected[output] * expected[output];
  }
}

void CudaMatMul::CheckShape(TensorType type, const Shape& shape, Rng& rng) {
  SCOPED_TRACE(std::string(TraitsOf(type).name) + " " + std::to_string(shape.rows) + " x " +
               std::to_string(shape.cols));
  const auto [rows, cols] = shape;
  const reference::Matrix matrix = reference::RandomMatrix(type, rows, cols, rng);
  const std::vector<float> x_values =
      reference::RandomFloats(size_t{kRowCountMax} * cols, 1.0, rng);
  Floats x(*this, x_values);
  const auto weight = *ops().Pack(matrix.view());
  ASSERT_EQ(weight->rows(), rows);
  ASSERT_EQ(weight->cols(), cols);
  const std::vector<float> y = Run(*weight, x, 0, kRowCountMax);
  const reference::Decoded decoded = reference::Decode(matrix);
  error_squares_ = squares_ = 0;
  for (size_t row = 0; row < kRowCountMax; ++row) {
    SCOPED_TRACE(row);
    CheckRow(matrix, decoded, std::span(x_values).subspan(row * cols, cols),
             std::span(y).subspan(row * rows, rows));
    if (HasFatalFailure()) return;
  }
  EXPECT_LE(std::sqrt(error_squares_ / squares_), kRelativeRmsMax);

  for (const uint32_t row_count : kRowCounts) {
    const auto begin = static_cast<uint32_t>(rng.Below(kRowCountMax - row_count + 1));
    const std::vector<float> part = Run(*weight, x, begin, row_count);
    ASSERT_EQ(std::memcmp(part.data(), &y[begin * rows], part.size() * sizeof(float)), 0)
        << row_count << " rows from " << begin;
  }
}

TEST_P(CudaMatMul, QuantisedTypesMatchTheReferenceAndAreRowLocal) {
  Rng rng(1);
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    for (const Shape& shape : std::span(kShapes).first(is_thorough() ? std::size(kShapes) : 3)) {
      CheckShape(type, shape, rng);
    }
  }
}

TEST_P(CudaMatMul, FloatTypesMatchTheReferenceAndAreRowLocal) {
  Rng rng(2);
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (const Shape& shape : std::span(kFloatShapes).last(is_thorough() ? 5 : 1)) {
      CheckShape(type, shape, rng);
    }
  }
}

// A group's sum is exact at the very ends of its range, whatever the order of its terms.
TEST_P(CudaMatMul, ExtremesOfAGroupAreExact) {
  for (const int sign : {1, -1}) {
    reference::Matrix matrix = {TensorType::kQ8_0, 16, 32, {}};
    for (uint32_t row = 0; row < matrix.rows; ++row) {
      const uint16_t one = 0x3c00;
      const auto* bytes = reinterpret_cast<const std::byte*>(&one);
      matrix.bytes.insert(matrix.bytes.end(), bytes, bytes + 2);
      matrix.bytes.insert(matrix.bytes.end(), 32, std::byte{0x80});  // -128
    }
    // The largest activation is 2047 * 2048 steps, and so are all the others.
    Floats x(*this, std::vector<float>(32, static_cast<float>(sign * 2047 * 2048)));
    const auto weight = *ops().Pack(matrix.view());
    for (const float y : Run(*weight, x, 0, 1)) {
      EXPECT_EQ(y, static_cast<float>(-128.0 * 32 * sign * 2047 * 2048));
    }
  }
}

TEST_P(CudaMatMul, OutputsThatShareActivationsEqualSeparateProducts) {
  Rng rng(4);
  constexpr uint32_t kCols = 64;
  const std::pair<TensorType, uint32_t> kinds[] = {{TensorType::kQ4_1, 100},
                                                   {TensorType::kF32, 1},
                                                   {TensorType::kQ8_0, 20},
                                                   {TensorType::kQ4_1, 30}};
  for (const uint32_t row_count : {5u, 40u}) {
    Floats x(*this, reference::RandomFloats(row_count * kCols, 1.0, rng));
    std::vector<std::unique_ptr<Weight>> weights;
    std::vector<std::unique_ptr<Floats>> together;
    std::vector<MatMulOutput> outputs;
    for (const auto& [type, rows] : kinds) {
      weights.push_back(*ops().Pack(reference::RandomMatrix(type, rows, kCols, rng).view()));
      together.push_back(std::make_unique<Floats>(*this, std::vector<float>(row_count * rows)));
      outputs.push_back({weights.back().get(), together.back()->data()});
    }
    ops().MatMul({x.data(), row_count, outputs}, stream());
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(together[i]->Read(), Run(*weights[i], x, 0, row_count)) << i;
    }
  }
}

TEST_P(CudaMatMul, ZeroTinyAndHugeActivations) {
  Rng rng(5);
  constexpr uint32_t kRows = 17, kCols = 64;
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_1}) {
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const auto weight = *ops().Pack(matrix.view());
    Floats zeros(*this, std::vector<float>(kCols, 0.0f));
    for (const float y : Run(*weight, zeros, 0, 1)) EXPECT_EQ(y, 0.0f);
    for (const float size : {1e-40f, 1e-20f, 1e30f}) {
      const std::vector<float> values(kCols, size);
      Floats x(*this, values);
      const auto exact = reference::MatMul(reference::Decode(matrix), kRows, kCols, values);
      const auto y = Run(*weight, x, 0, 1);
      for (uint32_t i = 0; i < kRows; ++i) EXPECT_NEAR(y[i], exact[i], 1e-5 * size + 1e-28);
    }
    // What is undefined stays visible: it must never turn into a plausible number.
    for (const float bad : {NAN, INFINITY}) {
      std::vector<float> values(kCols, 1.0f);
      values[40] = bad;
      Floats x(*this, values);
      for (const float y : Run(*weight, x, 0, 1)) EXPECT_FALSE(std::isfinite(y));
    }
  }
}

TEST_P(CudaMatMul, PackRefusesWhatDoesNotFit) {
  Rng rng(6);
  reference::Matrix matrix = reference::RandomMatrix(TensorType::kQ4_1, 3, 64, rng);
  matrix.bytes.pop_back();
  const Status status = ops().Pack(matrix.view()).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("expected 120 bytes, found 119"));
  EXPECT_EQ(ops().Pack({TensorType::kQ8_0, 1, 33, {}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ops().Pack({TensorType::kF32, 0, 8, {}}).status().code(), Code::kInvalidArgument);
}

// More rows than the kernels of exact mode take in fast mode.
class CudaDenseMatMul : public CudaMatMul {
 protected:
  static constexpr uint32_t kRows = 33, kCols = 96, kRowCount = 70;
};

TEST_P(CudaDenseMatMul, MatchesTheReference) {
  Rng rng(20);
  const std::vector<float> x_values = reference::RandomFloats(kRowCount * kCols, 1.0, rng);
  Floats x(*this, x_values);
  for (const TensorType type : {TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0,
                                TensorType::kQ4_0, TensorType::kQ4_1}) {
    SCOPED_TRACE(TraitsOf(type).name);
    const reference::Matrix matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const reference::Decoded decoded = reference::Decode(matrix);
    const auto weight = *ops().Pack(matrix.view());
    const std::vector<float> y = Run(*weight, x, 0, kRowCount);
    double error_squares = 0, squares = 0;
    for (size_t row = 0; row < kRowCount; ++row) {
      const auto x_row = std::span<const float>(x_values).subspan(row * kCols, kCols);
      const std::vector<double> expected = reference::MatMul(decoded, kRows, kCols, x_row);
      for (size_t output = 0; output < kRows; ++output) {
        const double error = std::fabs(y[row * kRows + output] - expected[output]);
        const auto values = std::span(decoded.values).subspan(output * kCols, kCols);
        const auto sizes = std::span(decoded.magnitudes).subspan(output * kCols, kCols);
        ASSERT_LE(error, DenseBound(values, sizes, x_row)) << row << ", output " << output;
        error_squares += error * error;
        squares += expected[output] * expected[output];
      }
    }
    EXPECT_LE(std::sqrt(error_squares / squares), kDenseRelativeRmsMax);
    EXPECT_GE(std::sqrt(error_squares / squares), kRelativeRmsMax);  // the dense kernels ran
  }
}

// Rows that float16 cannot hold, or not with all of its bits, are as good as others; and what is
// undefined stays in its row.
TEST_P(CudaDenseMatMul, RowsOfAnySizeMatchTheReference) {
  Rng rng(22);
  constexpr float kSizes[] = {65600.0f, 1e5f, 1e30f, 1.0f, 1e-3f, 1e-7f, 1e-20f, 0.0f};
  std::vector<float> x_values = reference::RandomFloats(kRowCount * kCols, 1.0, rng);
  for (size_t i = 0; i < x_values.size(); ++i) {
    x_values[i] *= kSizes[i / kCols % std::size(kSizes)];
  }
  constexpr uint32_t kInfiniteRow = 30, kUndefinedRow = 40;
  x_values[kInfiniteRow * kCols + 9] = INFINITY;
  x_values[kUndefinedRow * kCols + 9] = NAN;
  Floats x(*this, x_values);
  const reference::Matrix matrix = reference::RandomMatrix(TensorType::kQ4_0, kRows, kCols, rng);
  const reference::Decoded decoded = reference::Decode(matrix);
  const auto weight = *ops().Pack(matrix.view());
  const std::vector<float> y = Run(*weight, x, 0, kRowCount);
  for (size_t row = 0; row < kRowCount; ++row) {
    const auto x_row = std::span<const float>(x_values).subspan(row * kCols, kCols);
    const std::vector<double> expected = reference::MatMul(decoded, kRows, kCols, x_row);
    for (size_t output = 0; output < kRows; ++output) {
      const float actual = y[row * kRows + output];
      if (row == kInfiniteRow || row == kUndefinedRow) {
        ASSERT_FALSE(std::isfinite(actual)) << row;
        continue;
      }
      const auto values = std::span(decoded.values).subspan(output * kCols, kCols);
      const auto sizes = std::span(decoded.magnitudes).subspan(output * kCols, kCols);
      ASSERT_NEAR(actual, expected[output], DenseBound(values, sizes, x_row))
          << row << ", output " << output;
    }
  }
}

// The outputs of one call may go both ways.
TEST_P(CudaDenseMatMul, FineProductsHaveTheBitsOfFewRows) {
  Rng rng(21);
  Floats x(*this, reference::RandomFloats(kRowCount * kCols, 1.0, rng));
  const auto weight =
      *ops().Pack(reference::RandomMatrix(TensorType::kQ4_1, kRows, kCols, rng).view());
  Floats dense(*this, std::vector<float>(kRowCount * kRows)), fine(*this, dense.Read()),
      two(*this, dense.Read());
  const MatMulOutput outputs[] = {{weight.get(), dense.data()},
                                  {.weight = weight.get(), .y = fine.data(), .fine = true},
                                  {weight.get(), two.data()}};
  ops().MatMul({x.data(), kRowCount, outputs}, stream());
  const std::vector<float> y = fine.Read();
  EXPECT_TRUE(SameBits(dense.Read(), two.Read()));
  EXPECT_FALSE(SameBits(dense.Read(), y));
  const std::vector<float> few = Run(*weight, x, 8, 5);
  EXPECT_EQ(std::memcmp(few.data(), &y[8 * kRows], few.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(All, CudaDenseMatMul,
                         testing::Combine(testing::ValuesIn(CudaMachines()),
                                          testing::Values(ComputeMode::kFast)),
                         MachineName);
INSTANTIATE_TEST_SUITE_P(All, CudaMatMul,
                         testing::Combine(testing::ValuesIn(CudaMachines()),
                                          testing::Values(ComputeMode::kExact)),
                         MachineName);

}  // namespace
}  // namespace cairn
