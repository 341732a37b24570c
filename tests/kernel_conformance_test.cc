// Every operation but attention, on every backend that this machine can run, against the
// double-precision reference; and the row-local law: the bits of a row are those of the same row
// computed alone, at any row count, place in the batch and number of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/reference_ops.h"

namespace cairn {
namespace {

using reference::BackendCase;

// Both sides of every edge: tiles of 2 to 6 rows, direct blocks of 4, 6 and 8.
constexpr uint32_t kRowCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 33, 64, 130};
constexpr uint32_t kRowCountMax = 130;
constexpr uint32_t kReferenceStep = 9;  // every row is compared with itself, these with the truth
constexpr uint32_t kThreadCounts[] = {1, 2, 4};
constexpr double kUlp = 0x1p-24;  // of one rounding to float32, relative

struct Shape {
  uint32_t rows;
  uint32_t cols;
};
constexpr Shape kQuantShapes[] = {{1, 32},    {15, 64},   {16, 32},   {17, 576}, {48, 64},
                                  {48, 1536}, {192, 576}, {576, 576}, {33, 800}, {576, 1536}};
constexpr Shape kFloatShapes[] = {{1, 1},    {15, 7},   {16, 33},  {17, 100},
                                  {48, 383}, {33, 385}, {192, 576}};

template <class T>
bool SameBits(const T* a, const T* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(T)) == 0;
}

class KernelConformance : public testing::TestWithParam<BackendCase> {
 protected:
  struct Instance {
    explicit Instance(const BackendCase& backend, uint32_t thread_count)
        : parts(reference::MakeBackend(backend, thread_count)),
          stream(*parts.device->NewStream(StreamUse::kCompute)) {}
    Ops& ops() { return *parts.ops; }

    Backend parts;
    std::unique_ptr<Stream> stream;
  };

  // One instance for each entry of kThreadCounts.
  void SetUp() override {
    for (uint32_t thread_count : kThreadCounts) {
      instances_.push_back(std::make_unique<Instance>(GetParam(), thread_count));
    }
  }
  Instance& first() { return *instances_[0]; }

  std::vector<std::unique_ptr<Instance>> instances_;
};

// ---- MatMul ----------------------------------------------------------------------------------

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

// More rows than share an unpacked panel, and more panels than fit one share of a thread.
TEST_P(MatMulConformance, BigBatchEqualsItsRowsAlone) {
  Rng rng(3);
  constexpr uint32_t kRows = 80, kCols = 96, kRowCount = 600;
  for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const std::vector<float> x = reference::RandomFloats(size_t{kRowCount} * kCols, 1.0, rng);
    const auto weight = *first().ops().Pack(matrix.view());
    for (const auto& instance : instances_) {
      const std::vector<float> y = Run(*instance, *weight, x);
      for (uint32_t row = 0; row < kRowCount; row += 37) {
        const auto alone = Run(first(), *weight, std::span(x).subspan(row * kCols, kCols));
        EXPECT_TRUE(SameBits(alone.data(), y.data() + row * kRows, kRows)) << row;
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

// ---- Embed -----------------------------------------------------------------------------------

TEST_P(KernelConformance, EmbedReadsRowsOfThePackedTable) {
  Rng rng(7);
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1}) {
    constexpr uint32_t kRows = 37, kCols = 96, kRowCount = 100;
    const auto matrix = reference::RandomMatrix(type, kRows, kCols, rng);
    const reference::Decoded decoded = reference::Decode(matrix);
    const auto table = *first().ops().Pack(matrix.view());
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < kRowCount; ++i)
      tokens.push_back(static_cast<uint32_t>(rng.Below(kRows)));
    for (const auto& instance : instances_) {
      std::vector<float> out(kRowCount * kCols);
      instance->ops().Embed({table.get(), tokens.data(), out.data(), kRowCount}, *instance->stream);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t element = tokens[i / kCols] * kCols + i % kCols;
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

// ---- RopeWriteKv -----------------------------------------------------------------------------

struct RopeCase {
  uint32_t head_count, kv_head_count, head_dim, rotary_dim, block_tokens;
};
constexpr RopeCase kRopeCases[] = {{9, 3, 64, 64, 16}, {4, 4, 128, 96, 32}, {2, 1, 80, 20, 16},
                                   {3, 1, 8, 8, 16},   {1, 1, 12, 6, 64},   {2, 2, 64, 0, 16}};

class RopeConformance : public KernelConformance {
 protected:
  static constexpr uint32_t kRowCount = 70;
  static constexpr uint32_t kPositions = 200;
  static constexpr uint32_t kLayers = 3, kLayer = 1;

  // Each row writes a block of its own, so that no two rows meet.
  struct State {
    std::vector<float> q;
    std::vector<std::byte> blocks;
  };

  void Prepare(const RopeCase& c, Rng& rng) {
    layout_ = {kLayers, c.kv_head_count, c.head_dim, c.block_tokens, KvType::kF16, "test"};
    q_ = reference::RandomFloats(size_t{kRowCount} * c.head_count * c.head_dim, 1.0, rng);
    k_ = reference::RandomFloats(size_t{kRowCount} * c.kv_head_count * c.head_dim, 1.0, rng);
    v_ = reference::RandomFloats(k_.size(), 1.0, rng);
    v_[0] = 1e6f;  // beyond float16: becomes its largest finite value
    cos_sin_.clear();
    for (uint32_t i = 0; i < kPositions * c.rotary_dim / 2; ++i) {
      const double angle = 6.2 * rng.Uniform();
      cos_sin_.push_back(static_cast<float>(std::cos(angle)));
      cos_sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    positions_.clear();
    for (uint32_t row = 0; row < kRowCount; ++row) {
      positions_.push_back(static_cast<uint32_t>(rng.Below(kPositions)));
    }
  }

  // Runs rows [begin, end) of the case; row 5 writes no block.
  void Run(Instance& instance, const RopeCase& c, uint32_t begin, uint32_t end, State& state) {
    std::vector<RowPlace> places;
    for (uint32_t row = begin; row < end; ++row) {
      std::byte* const block = &state.blocks[row * layout_.block_bytes()];
      places.push_back({positions_[row], row == 5 ? nullptr : block});
    }
    instance.ops().RopeWriteKv({.q = &state.q[begin * size_t{c.head_count} * c.head_dim],
                                .k = &k_[begin * size_t{c.kv_head_count} * c.head_dim],
                                .v = &v_[begin * size_t{c.kv_head_count} * c.head_dim],
                                .cos_sin = cos_sin_.data(),
                                .places = places.data(),
                                .layout = &layout_,
                                .layer = kLayer,
                                .row_count = end - begin,
                                .head_count = c.head_count,
                                .rotary_dim = c.rotary_dim,
                                .q_scale = 0.3f},
                               *instance.stream);
  }

  State Fresh() const {
    return {q_, std::vector<std::byte>(kRowCount * layout_.block_bytes(), std::byte{0x11})};
  }
  std::span<const float> Angles(const RopeCase& c, uint32_t row) const {
    return std::span(cos_sin_).subspan(positions_[row] * size_t{c.rotary_dim}, c.rotary_dim);
  }
  void CheckQueries(const RopeCase& c, const State& state) const;
  void CheckBlocks(const RopeCase& c, State& state) const;

  KvLayout layout_;
  std::vector<float> q_, k_, v_, cos_sin_;
  std::vector<uint32_t> positions_;
};

// Two products, a sum and the scale: 4 roundings of terms no larger than the pair.
void RopeConformance::CheckQueries(const RopeCase& c, const State& state) const {
  for (size_t start = 0; start < q_.size(); start += c.head_dim) {
    const uint32_t row = static_cast<uint32_t>(start / (size_t{c.head_count} * c.head_dim));
    const auto head = std::span(q_).subspan(start, c.head_dim);
    const auto expected = reference::Rotate(head, Angles(c, row));
    for (uint32_t i = 0; i < c.head_dim; ++i) {
      const double pair = std::fabs(head[i]) + std::fabs(head[i ^ 1]);
      ASSERT_NEAR(state.q[start + i], 0.3f * expected[i], 4 * kUlp * pair) << row << " " << i;
    }
  }
}

// Checks and erases every element that was to be written; what is left must be untouched.
void RopeConformance::CheckBlocks(const RopeCase& c, State& state) const {
  for (uint32_t row = 0; row < kRowCount; ++row) {
    if (row == 5) continue;
    std::byte* const block = &state.blocks[row * layout_.block_bytes()];
    const uint32_t token = positions_[row] % c.block_tokens;
    for (uint32_t head = 0; head < c.kv_head_count; ++head) {
      const size_t source = (size_t{row} * c.kv_head_count + head) * c.head_dim;
      const auto keys =
          reference::Rotate(std::span(k_).subspan(source, c.head_dim), Angles(c, row));
      for (uint32_t i = 0; i < c.head_dim; ++i) {
        std::byte* const key =
            block + layout_.key_offset(kLayer, head) + (i * c.block_tokens + token) * 2;
        std::byte* const value =
            block + layout_.value_offset(kLayer, head) + (token * c.head_dim + i) * 2;
        uint16_t bits;
        std::memcpy(&bits, key, 2);
        // Half a step of float16, and a little for the rounding before.
        ASSERT_NEAR(reference::HalfValue(bits), keys[i], std::fabs(keys[i]) * 0x1.02p-11 + 1e-6);
        std::memcpy(&bits, value, 2);
        ASSERT_EQ(bits, reference::NearestHalf(v_[source + i]));
        std::memset(key, 0x11, 2);
        std::memset(value, 0x11, 2);
      }
    }
  }
  EXPECT_TRUE(std::ranges::all_of(state.blocks, [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST_P(RopeConformance, MatchesTheReferenceAndIsRowLocal) {
  Rng rng(10);
  for (const RopeCase& c : kRopeCases) {
    SCOPED_TRACE(c.head_dim);
    Prepare(c, rng);
    State lone = Fresh();
    for (uint32_t row = 0; row < kRowCount; ++row) Run(first(), c, row, row + 1, lone);
    for (const auto& instance : instances_) {
      State batch = Fresh();
      Run(*instance, c, 0, kRowCount, batch);
      ASSERT_TRUE(SameBits(batch.q.data(), lone.q.data(), lone.q.size()));
      ASSERT_TRUE(batch.blocks == lone.blocks);
    }
    CheckQueries(c, lone);
    CheckBlocks(c, lone);
  }
}

// ---- Backends --------------------------------------------------------------------------------

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
  EXPECT_EQ(status.field(), "instruction_set");
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

std::string CaseName(const testing::TestParamInfo<BackendCase>& info) { return info.param.Name(); }
const auto kBackends = testing::ValuesIn(reference::AvailableBackends());
INSTANTIATE_TEST_SUITE_P(Cpu, KernelConformance, kBackends, CaseName);
INSTANTIATE_TEST_SUITE_P(Cpu, MatMulConformance, kBackends, CaseName);
INSTANTIATE_TEST_SUITE_P(Cpu, RopeConformance, kBackends, CaseName);

}  // namespace
}  // namespace cairn
