// Products on every backend that this machine can run, against the double-precision reference, and
// their row-local law.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernel_conformance.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

// Both sides of every edge: tiles of 2 to 6 rows, direct blocks of 6 and 8.
constexpr uint32_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 33, 64, kRowCountMax};
// Every row is compared with itself, these with the truth.
constexpr uint32_t kReferenceStep = kSanitized ? 50 : 9;

struct Shape {
  uint32_t rows;
  uint32_t cols;
};
constexpr Shape kQuantShapes[] = {{1, 32},    {15, 64},   {16, 32},   {17, 576}, {48, 64},
                                  {48, 1536}, {192, 576}, {576, 576}, {33, 800}, {576, 1536}};
// A chunk of a float panel holds 64 k.
constexpr Shape kFloatShapes[] = {{1, 1},   {15, 7},  {16, 33},  {17, 63},
                                  {17, 64}, {48, 65}, {33, 385}, {192, 576}};

// How far one output may be from the exact product, as a bound that no input can pass.
//
// Float types: 2 * cols roundings (a product and a sum for each k), each relative to a partial sum
// that is at most sum |w x|:              (2 cols + 2) ulp * sum |w x|.
// Quantised types: an activation is off by half a step of its group, the step being max |x| / limit
// (32,639 or 127; 0.51 instead of 0.5 for the rounding of x / step):
//                                         sum over groups of 0.51 step * sum |w|.
// The integer sums are exact; then a group costs two additions of terms of |scale quant x| and
// |offset x|, with at most four roundings inside a term:
//                                         (2 groups + 6) ulp * sum magnitude * |x|.
double MatMulBound(TensorType type, ComputeMode mode, std::span<const double> weight,
                   std::span<const double> magnitude, std::span<const float> x) {
  const size_t cols = x.size();
  double absolute = 0;
  for (size_t k = 0; k < cols; ++k) absolute += magnitude[k] * std::fabs(x[k]);
  if (TraitsOf(type).group_elements == 1) {
    return (2.0 * static_cast<double>(cols) + 2) * kUlp * absolute;
  }
  const bool is_int8 = type != TensorType::kQ8_0 && mode == ComputeMode::kFast;
  const double limit = is_int8 ? 127 : 32639;
  const size_t group_count = cols / kQuantGroup;
  double bound = 1.01 * (2.0 * static_cast<double>(group_count) + 6) * kUlp * absolute;
  for (size_t group = 0; group < group_count; ++group) {
    double max = 0, weights = 0;
    for (size_t k = group * kQuantGroup; k < (group + 1) * kQuantGroup; ++k) {
      max = std::max(max, std::fabs(double{x[k]}));
      weights += std::fabs(weight[k]);
    }
    bound += 0.51 * max / limit * weights;
  }
  return bound;
}

// The typical error, which is what a user of the mode gets: the bound above is for the worst case.
// A group's largest of 32 normal activations is about 2.1 deviations, and the error of rounding
// has a deviation of step / sqrt(12): 1.9e-5 for int16, 4.8e-3 for int8. Twice that is allowed.
double RelativeRmsMax(TensorType type, ComputeMode mode) {
  if (TraitsOf(type).group_elements == 1) return 2e-6;
  return type != TensorType::kQ8_0 && mode == ComputeMode::kFast ? 1e-2 : 4e-5;
}

class MatMulConformance : public KernelConformance {
 protected:
  void CheckShape(TensorType type, const Shape& shape, Rng& rng);
  std::vector<float> Run(Instance& instance, const Weight& weight, std::span<const float> x) {
    const uint32_t row_count = static_cast<uint32_t>(x.size() / weight.cols());
    std::vector<float> y(size_t{row_count} * weight.rows(), NAN);
    const MatMulOutput outputs[] = {{&weight, y.data()}};
    instance.ops().MatMul({x.data(), row_count, outputs}, *instance.stream);
    return y;
  }
};

void MatMulConformance::CheckShape(TensorType type, const Shape& shape, Rng& rng) {
  SCOPED_TRACE(std::string(TraitsOf(type).name) + " " + std::to_string(shape.rows) + " x " +
               std::to_string(shape.cols));
  const auto [rows, cols] = shape;
  const reference::Matrix matrix = reference::RandomMatrix(type, rows, cols, rng);
  const std::vector<float> x = reference::RandomFloats(size_t{kRowCountMax} * cols, 1.0, rng);
  const auto weight = *first().ops().Pack(matrix.view());
  ASSERT_EQ(weight->rows(), rows);
  ASSERT_EQ(weight->cols(), cols);
  const std::vector<float> y = Run(first(), *weight, x);

  const reference::Decoded decoded = reference::Decode(matrix);
  double error_squares = 0, squares = 0;
  for (size_t row = 0; row < kRowCountMax; row += kReferenceStep) {
    const std::span<const float> x_row = std::span(x).subspan(row * cols, cols);
    const std::vector<double> expected = reference::MatMul(decoded, rows, cols, x_row);
    for (size_t output = 0; output < rows; ++output) {
      const double error = std::fabs(y[row * rows + output] - expected[output]);
      const auto values = std::span(decoded.values).subspan(output * cols, cols);
      const auto magnitudes = std::span(decoded.magnitudes).subspan(output * cols, cols);
      ASSERT_LE(error, MatMulBound(type, GetParam().mode, values, magnitudes, x_row))
          << "row " << row << ", output " << output;
      error_squares += error * error;
      squares += expected[output] * expected[output];
    }
  }
  EXPECT_LE(std::sqrt(error_squares / squares), RelativeRmsMax(type, GetParam().mode));

  for (const auto& instance : instances_) {
    for (const uint32_t row_count : kRowCounts) {
      const size_t start = rng.Below(kRowCountMax - row_count + 1);
      const std::vector<float> part =
          Run(*instance, *weight, std::span(x).subspan(start * cols, size_t{row_count} * cols));
      ASSERT_TRUE(SameBits(part.data(), y.data() + start * rows, part.size()))
          << row_count << " rows from " << start;
    }
  }
}

TEST_P(MatMulConformance, QuantisedTypesMatchTheReferenceAndAreRowLocal) {
  Rng rng(1);
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    for (const Shape& shape : kQuantShapes) CheckShape(type, shape, rng);
  }
}

TEST_P(MatMulConformance, FloatTypesMatchTheReferenceAndAreRowLocal) {
  Rng rng(2);
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
    for (const Shape& shape : kFloatShapes) CheckShape(type, shape, rng);
  }
}

// Row counts on both sides of what tiles, direct blocks and tasks hold, up to several tasks, with
// more panels than one share of a thread. Each row alone is compared with the truth, and every
// batch with its rows alone.
TEST_P(MatMulConformance, BatchesOfEverySizeEqualTheirRowsAlone) {
  Rng rng(3);
  constexpr uint32_t kRows = 70, kCols = 96, kRowsMax = 600;
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    SCOPED_TRACE(TraitsOf(type).name);
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const reference::Decoded decoded = reference::Decode(matrix);
    const std::vector<float> x = reference::RandomFloats(size_t{kRowsMax} * kCols, 1.0, rng);
    const auto weight = *first().ops().Pack(matrix.view());
    std::vector<float> alone;
    for (uint32_t row = 0; row < kRowsMax; ++row) {
      const std::span<const float> x_row = std::span(x).subspan(row * kCols, kCols);
      const std::vector<float> y = Run(first(), *weight, x_row);
      const std::vector<double> expected = reference::MatMul(decoded, kRows, kCols, x_row);
      for (uint32_t output = 0; output < kRows; ++output) {
        const auto values = std::span(decoded.values).subspan(output * kCols, kCols);
        const auto magnitudes = std::span(decoded.magnitudes).subspan(output * kCols, kCols);
        ASSERT_LE(std::fabs(y[output] - expected[output]),
                  MatMulBound(type, GetParam().mode, values, magnitudes, x_row))
            << "row " << row << ", output " << output;
      }
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const auto& instance : instances_) {
      for (const uint32_t row_count :
           {1, 7, 8, 23, 24, 25, 36, 37, 127, 128, 129, 255, 256, 257, 511, 512, 513, 600}) {
        const size_t start = rng.Below(kRowsMax - row_count + 1);
        const std::vector<float> y =
            Run(*instance, *weight, std::span(x).subspan(start * kCols, row_count * kCols));
        for (size_t row = 0; row < row_count; ++row) {
          ASSERT_TRUE(SameBits(&y[row * kRows], &alone[(start + row) * kRows], kRows))
              << "row " << row << " of " << row_count;
        }
      }
    }
  }
}

TEST_P(MatMulConformance, OutputsThatShareActivationsEqualSeparateProducts) {
  Rng rng(4);
  constexpr uint32_t kCols = 64, kRowCount = 5;
  const std::vector<float> x = reference::RandomFloats(kRowCount * kCols, 1.0, rng);
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<std::vector<float>> together;
  std::vector<MatMulOutput> outputs;
  const std::pair<TensorType, uint32_t> kinds[] = {{TensorType::kQ4_1, 100},
                                                   {TensorType::kQ8_0, 20},
                                                   {TensorType::kF32, 1},
                                                   {TensorType::kQ4_0, 64}};
  for (const auto& [type, rows] : kinds) {
    weights.push_back(*first().ops().Pack(reference::RandomMatrix(type, rows, kCols, rng).view()));
    together.emplace_back(kRowCount * rows);
    outputs.push_back({weights.back().get(), together.back().data()});
  }
  for (const auto& instance : instances_) {
    instance->ops().MatMul({x.data(), kRowCount, outputs}, *instance->stream);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(together[i], Run(first(), *weights[i], x));
    }
  }
}

TEST_P(MatMulConformance, FineProductsHaveTheBitsOfExactMode) {
  Rng rng(8);
  constexpr uint32_t kRows = 40, kCols = 96, kRowCount = 30;
  const std::vector<float> x = reference::RandomFloats(kRowCount * kCols, 1.0, rng);
  reference::BackendCase exact_case = GetParam();
  exact_case.mode = ComputeMode::kExact;
  Instance exact(exact_case, 1);
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const auto weight = *first().ops().Pack(matrix.view());
    std::vector<float> fine(kRowCount * kRows);
    std::vector<float> by_mode(kRowCount * kRows);
    const MatMulOutput outputs[] = {{weight.get(), by_mode.data()},
                                    {.weight = weight.get(), .y = fine.data(), .fine = true}};
    first().ops().MatMul({x.data(), kRowCount, outputs}, *first().stream);
    EXPECT_EQ(by_mode, Run(first(), *weight, x));
    EXPECT_EQ(fine, Run(exact, **exact.ops().Pack(matrix.view()), x)) << TraitsOf(type).name;
    const bool differs = type == TensorType::kQ4_1 && GetParam().mode == ComputeMode::kFast;
    EXPECT_EQ(fine != by_mode, differs);
  }
}

TEST_P(MatMulConformance, ZeroTinyAndHugeActivations) {
  Rng rng(5);
  constexpr uint32_t kRows = 17, kCols = 64;
  for (const TensorType type : {TensorType::kF32, TensorType::kQ8_0, TensorType::kQ4_1}) {
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const auto weight = *first().ops().Pack(matrix.view());
    const std::vector<float> zeros(kCols, 0.0f);
    for (float y : Run(first(), *weight, zeros)) EXPECT_EQ(y, 0.0f);
    for (const float size : {1e-40f, 1e-20f, 1e30f}) {
      const std::vector<float> x(kCols, size);
      const auto exact = reference::MatMul(reference::Decode(matrix), kRows, kCols, x);
      const auto y = Run(first(), *weight, x);
      for (uint32_t i = 0; i < kRows; ++i) EXPECT_NEAR(y[i], exact[i], 0.05 * size + 1e-28);
    }
    // What is undefined stays visible: it must never turn into a plausible number.
    for (const float bad : {NAN, INFINITY}) {
      std::vector<float> x(kCols, 1.0f);
      x[40] = bad;
      for (float y : Run(first(), *weight, x)) EXPECT_FALSE(std::isfinite(y));
    }
  }
}

TEST_P(MatMulConformance, PackRefusesWhatDoesNotFit) {
  Rng rng(6);
  reference::Matrix matrix = reference::RandomMatrix(TensorType::kQ4_1, 3, 64, rng);
  matrix.bytes.pop_back();
  const Status status = first().ops().Pack(matrix.view()).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("expected 120 bytes, found 119"));
  EXPECT_EQ(first().ops().Pack({TensorType::kQ8_0, 1, 33, {}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(first().ops().Pack({TensorType::kF32, 0, 8, {}}).status().code(),
            Code::kInvalidArgument);
}

// The integers are exact and the floating-point additions have one order, with the same fusions:
// the wider vectors change no bit.
TEST(Avx512Test, ProductsHaveTheBitsOfAvx2) {
  if (!MakeCpuBackend({1, ComputeMode::kExact, "avx512"}).ok()) {
    GTEST_SKIP() << "this processor has no AVX-512 with VNNI";
  }
  Rng rng(7);
  constexpr uint32_t kRows = 49, kCols = 640, kRowCount = 29;
  for (const ComputeMode mode : {ComputeMode::kExact, ComputeMode::kFast}) {
    for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                  TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
      const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
      const std::vector<float> x = reference::RandomFloats(kRowCount * kCols, 1.0, rng);
      std::vector<float> products[2];
      for (const bool is_wide : {false, true}) {
        const Backend backend = *MakeCpuBackend({1, mode, is_wide ? "avx512" : "avx2"});
        const auto stream = *backend.device->NewStream(StreamUse::kCompute);
        const auto weight = *backend.ops->Pack(matrix.view());
        products[is_wide].resize(size_t{kRowCount} * kRows);
        const MatMulOutput output = {weight.get(), products[is_wide].data()};
        backend.ops->MatMul({x.data(), kRowCount, {&output, 1}}, *stream);
      }
      EXPECT_TRUE(SameBits(products[0].data(), products[1].data(), products[0].size()))
          << TraitsOf(type).name << ' ' << ComputeModeName(mode);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, MatMulConformance, testing::ValuesIn(reference::AvailableBackends()),
                         CaseName);

}  // namespace
}  // namespace cairn
