// The row-wise operations on every backend that this machine can run, against the double-precision
// reference, and their row-local law; and what a backend says of itself and refuses.
#include "tests/kernel_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace cairn {
namespace {

TEST_P(KernelConformance, EmbedReadsRowsOfThePackedTable) {
  Rng rng(7);
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    constexpr uint32_t kRows = 37, kCols = 96, kRowCount = 100;
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const reference::Decoded decoded = reference::Decode(matrix);
    const auto table = *first().ops().Pack(matrix.view());
    std::vector<BatchRow> rows;
    for (uint32_t i = 0; i < kRowCount; ++i)
      rows.push_back({.token = static_cast<uint32_t>(rng.Below(kRows))});
    for (const auto& instance : instances_) {
      std::vector<float> out(kRowCount * kCols);
      const Batch& batch = instance->SetBatch(rows, {});
      instance->ops().Embed({table.get(), &batch, out.data()}, *instance->stream);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t element = rows[i / kCols].token * kCols + i % kCols;
        // A product and, for 4-bit types, a sum are rounded; the others are exact.
        const bool is_exact = type != TensorType::kQ4_0 && type != TensorType::kQ4_1;
        const double bound = is_exact ? 0 : 2 * kUlp * decoded.magnitudes[element];
        ASSERT_NEAR(out[i], decoded.values[element], bound) << TraitsOf(type).name;
      }
    }
  }
}

// ---- RmsNorm ---------------------------------------------------------------------------------

// The sum of squares has at most width / 8 + 12 roundings in a row, and the root halves its
// relative error; the root, the quotient, the mean, delta and the two products add a few more.
double RmsNormBound(double out, uint32_t width) {
  return std::fabs(out) * (width / 16.0 + 16) * kUlp;
}

TEST_P(KernelConformance, RmsNormMatchesTheReferenceAndIsRowLocal) {
  Rng rng(8);
  constexpr float kEpsilon = 1e-5f;
  for (const uint32_t width : {1u, 7u, 8u, 31u, 40u, 576u, 2051u}) {
    const std::vector<float> x = reference::RandomFloats(kRowCountMax * width, 3.0, rng);
    const std::vector<float> delta = reference::RandomFloats(x.size(), 1.0, rng);
    const std::vector<float> gain = reference::RandomFloats(width, 1.0, rng);
    for (const bool has_delta : {false, true}) {
      std::vector<float> lone_x = x, lone_out(x.size());
      for (uint32_t row = 0; row < kRowCountMax; ++row) {
        const size_t start = size_t{row} * width;
        first().ops().RmsNorm({&lone_x[start], has_delta ? &delta[start] : nullptr, gain.data(),
                               &lone_out[start], 1, width, kEpsilon},
                              *first().stream);
        const auto expected = reference::RmsNorm(
            {&x[start], width}, {&delta[start], has_delta ? width : 0}, gain, kEpsilon);
        for (uint32_t i = 0; i < width; ++i) {
          ASSERT_EQ(lone_x[start + i], static_cast<float>(expected.x[i]));
          ASSERT_NEAR(lone_out[start + i], expected.out[i], RmsNormBound(expected.out[i], width));
        }
      }
      for (const auto& instance : instances_) {
        std::vector<float> batch_x = x, out = delta;  // the output may take delta's place
        instance->ops().RmsNorm({batch_x.data(), has_delta ? out.data() : nullptr, gain.data(),
                                 out.data(), kRowCountMax, width, kEpsilon},
                                *instance->stream);
        ASSERT_TRUE(SameBits(batch_x.data(), lone_x.data(), x.size()));
        ASSERT_TRUE(SameBits(out.data(), lone_out.data(), x.size()));
      }
    }
  }
}

// ---- SwiGlu ----------------------------------------------------------------------------------

TEST_P(KernelConformance, SwiGluMatchesTheReferenceAndIsRowLocal) {
  Rng rng(9);
  for (const uint32_t width : {1u, 5u, 8u, 67u, 1536u}) {
    std::vector<float> gate = reference::RandomFloats(kRowCountMax * width, 4.0, rng);
    const std::vector<float> up = reference::RandomFloats(gate.size(), 1.0, rng);
    const float extremes[] = {0.0f, -0.0f, -86.9f, -88.0f, -1000.0f, 86.9f, 88.0f, 1000.0f, 1e-30f};
    std::copy_n(extremes, std::min(std::size(extremes), gate.size()), gate.begin());
    std::vector<float> lone(gate.size());
    for (size_t i = 0; i < gate.size(); i += width) {
      first().ops().SwiGlu({&gate[i], &up[i], &lone[i], 1, width}, *first().stream);
    }
    for (size_t i = 0; i < gate.size(); ++i) {
      // Exponential 3 roundings, sum, quotient and product 1 each, and one to spare for the
      // reduction; far below zero the result is as good as zero.
      const double expected = reference::SwiGlu(gate[i], up[i]);
      ASSERT_NEAR(lone[i], expected, 8 * kUlp * std::fabs(expected) + 1e-34) << gate[i];
    }
    for (const auto& instance : instances_) {
      std::vector<float> out = gate;  // the output may take the gate's place
      instance->ops().SwiGlu({out.data(), up.data(), out.data(), kRowCountMax, width},
                             *instance->stream);
      ASSERT_TRUE(SameBits(out.data(), lone.data(), out.size()));
    }
  }
}

TEST_P(KernelConformance, TopLogitsRankByValueThenById) {
  Rng rng(41);
  constexpr uint32_t kWidth = 1000, kRowCount = 3;
  std::vector<float> logits;
  for (uint32_t i = 0; i < kRowCount * kWidth; ++i) {  // many ties
    logits.push_back(static_cast<float>(rng.Below(kWidth)) - 500.0f);
  }
  logits[7] = NAN, logits[9] = INFINITY, logits[10] = std::numeric_limits<float>::max();
  logits[11] = -INFINITY, logits[13] = -0.0f;
  for (const uint32_t count : {1u, 2u, 100u, kTopLogitsMax}) {
    std::vector<RankedLogit> out(size_t{kRowCount} * count);
    first().ops().TopLogits({logits.data(), kRowCount, kWidth, count, out.data()}, *first().stream);
    for (uint32_t row = 0; row < kRowCount; ++row) {
      std::vector<RankedLogit> expected;
      for (uint32_t id = 0; id < kWidth; ++id) {
        const float logit = logits[row * kWidth + id];
        const float value = std::isnan(logit) ? -INFINITY : logit;
        expected.push_back({std::min(value, std::numeric_limits<float>::max()), id});
      }
      std::ranges::stable_sort(expected, std::ranges::greater(), &RankedLogit::value);
      for (uint32_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[size_t{row} * count + i], expected[i]) << row << ", rank " << i;
        ASSERT_FALSE(out[size_t{row} * count + i].value == 0 &&
                     std::signbit(out[size_t{row} * count + i].value));
      }
    }
  }
}

TEST(CpuBackendTest, SaysWhatItIsAndRefusesWhatItIsNot) {
  const Backend backend = *MakeCpuBackend({2, ComputeMode::kFast, "portable"});
  EXPECT_EQ(backend.arithmetic, "cpu-portable-fast");
  EXPECT_EQ(backend.device->info().backend, "cpu");
  EXPECT_EQ(backend.device->info().instruction_set, "portable");
  EXPECT_EQ(backend.device->info().thread_count, 2u);
  EXPECT_FALSE(backend.device->info().name.empty());
  EXPECT_TRUE(MakeCpuBackend({1, ComputeMode::kExact, {}}).ok());

  for (const uint32_t thread_count : {0u, 257u}) {
    const Status status = MakeCpuBackend({thread_count, ComputeMode::kExact, {}}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.field(), "thread_count");
  }
  const Status status = MakeCpuBackend({1, ComputeMode::kExact, "avx9"}).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "--instruction-set");
}

TEST(CpuBackendDeathTest, RefusesACopyStreamAndUnequalShapes) {
  Rng rng(11);
  const Backend backend = *MakeCpuBackend({1, ComputeMode::kExact, {}});
  const auto copy = *backend.device->NewStream(StreamUse::kCopy);
  const auto compute = *backend.device->NewStream(StreamUse::kCompute);
  float x[64] = {}, y[2] = {};
  EXPECT_DEATH(backend.ops->SwiGlu({x, x, y, 1, 1}, *copy), "CHECK failed");
  const auto wide =
      *backend.ops->Pack(reference::RandomMatrix(TensorType::kF32, 1, 64, rng).view());
  const auto slim =
      *backend.ops->Pack(reference::RandomMatrix(TensorType::kF32, 1, 32, rng).view());
  const MatMulOutput outputs[] = {{wide.get(), y}, {slim.get(), y + 1}};
  EXPECT_DEATH(backend.ops->MatMul({x, 1, outputs}, *compute), "CHECK failed");
}

INSTANTIATE_TEST_SUITE_P(Cpu, KernelConformance, testing::ValuesIn(reference::AvailableBackends()),
                         CaseName);

}  // namespace
}  // namespace cairn
