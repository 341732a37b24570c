// Paged attention, every implementation that this processor can run: against a reference in double
// precision, and against itself, bit for bit, over batches, chunks and thread counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/attention_cache.h"
#include "tests/reference_ops.h"
#include "tests/sanitized.h"

namespace cairn {
namespace {

using Attention = void (*)(const PagedAttentionArgs&, ThreadPool&);

struct Implementation {
  const char* name;
  Attention run;
};

std::vector<Implementation> Implementations() {
  std::vector<Implementation> all = {{"portable", PagedAttentionPortable}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    all.push_back({"avx2", PagedAttentionAvx2});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
      all.push_back({"avx512", PagedAttentionAvx512});
    }
  }
#endif
  return all;
}

struct Heads {
  uint32_t kv_heads;
  uint32_t group;
  uint32_t head_dim;
  uint32_t block_tokens;

  uint32_t head_count() const { return kv_heads * group; }
  size_t row_floats() const { return size_t{head_count()} * head_dim; }
};

constexpr uint32_t kLayers = 2;
constexpr uint32_t kLayer = 1;  // not the first, so that the layer's offset matters

KvLayout LayoutOf(const Heads& heads) {
  return AttentionLayout(kLayers, heads.kv_heads, heads.head_dim, heads.block_tokens);
}

// Scaled queries whose scores have a deviation of about 2, so that softmax has peaks.
std::vector<float> RandomQueries(const Heads& heads, uint32_t rows, Rng& rng) {
  return reference::RandomFloats(rows * heads.row_floats(), 2.0 / std::sqrt(heads.head_dim), rng);
}

std::vector<float> RunSegments(const Implementation& implementation, const Heads& heads,
                               const std::vector<float>& q,
                               const std::vector<AttentionSegment>& segments, ThreadPool& pool) {
  std::vector<float> out(q.size(), std::nanf(""));
  const KvLayout layout = LayoutOf(heads);
  CpuComputeStream stream;
  Batch batch;
  batch.Set({}, segments, stream);
  implementation.run({.q = q.data(),
                      .out = out.data(),
                      .batch = &batch,
                      .segment_count = static_cast<uint32_t>(segments.size()),
                      .layout = &layout,
                      .layer = kLayer,
                      .head_count = heads.head_count()},
                     pool);
  return out;
}

// --- Against double precision ---------------------------------------------------------------

struct ReferenceQuery {
  std::vector<double> out;
  double score_magnitude;  // the largest sum over d of |q k|, in units of log2
  double value_max;        // the largest |v|
};

ReferenceQuery Reference(const Heads& heads, const CachedSequence& sequence, const float* q,
                         uint32_t head, uint32_t position) {
  const uint32_t kv_head = head / heads.group;
  ReferenceQuery result{std::vector<double>(heads.head_dim), 0, 0};
  std::vector<double> weights(position + 1);
  for (uint32_t t = 0; t <= position; ++t) {
    double magnitude = 0;
    for (uint32_t d = 0; d < heads.head_dim; ++d) {
      const double product = q[d] * reference::HalfValue(sequence.Key(kLayer, kv_head, t, d));
      weights[t] += product;
      magnitude += std::abs(product) * M_LOG2E;
    }
    result.score_magnitude = std::max(result.score_magnitude, magnitude);
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (uint32_t t = 0; t <= position; ++t) {
    for (uint32_t d = 0; d < heads.head_dim; ++d) {
      const double value = reference::HalfValue(sequence.Value(kLayer, kv_head, t, d));
      result.out[d] += weights[t] / sum * value;
      result.value_max = std::max(result.value_max, std::abs(value));
    }
  }
  return result;
}

// The most that an element may be off, to first order in u = 2^-24, the rounding of float32.
//
// A score is a sum of head_dim products of factors that were rounded once (q by log2 e, and log2 e
// itself): off by at most (2 head_dim + 2) u S without fma, S being the largest sum of magnitudes.
// Subtracting the maximum, which is off by as much, adds u times a difference of at most 2 S. The
// exponent is thus off by (4 head_dim + 6) u S, and a weight relatively by ln 2 times that, plus
// 1e-7 < 2 u of the power itself. Sums of n <= 256 terms in a span add at most 2 n u, for values
// and for the divisor alike, and each merge of a span less than 8 u. A relative error e of all
// weights moves their mean of values, of magnitude V at most, by 2 e V.
double ErrorMax(const Heads& heads, const ReferenceQuery& query, uint32_t position) {
  constexpr double kUnit = 0x1p-24;
  const double span_count = position / kAttentionSpan + 1;
  const double tokens = std::min(position + 1, kAttentionSpan);
  const double weight = M_LN2 * (4 * heads.head_dim + 6) * query.score_magnitude + 2;
  return 2 * query.value_max * kUnit * (weight + 2 * tokens + 8 * span_count);
}

// That bound holds in every case, but errors mostly cancel, and a wrong term could hide below it.
// Rounding errors that are independent add up as a random walk: a score's deviation is near
// u sqrt(head_dim) s / 2 with scores s of about 2 to 8, so weights are off by some 5e-7, and the
// outputs by less, since their errors average as the values do. Their RMS may be this much of the
// RMS of the output; the one measured is below 7e-7.
constexpr double kRelativeRmsMax = 2e-6;

struct Accuracy {
  double error_squares = 0;
  double out_squares = 0;
  double relative_rms() const { return std::sqrt(error_squares / out_squares); }
};

void CompareRow(const Heads& heads, const CachedSequence& sequence, const float* q,
                const float* out, uint32_t position, Accuracy& accuracy) {
  for (uint32_t head = 0; head < heads.head_count(); ++head) {
    const size_t offset = size_t{head} * heads.head_dim;
    const ReferenceQuery expected = Reference(heads, sequence, q + offset, head, position);
    const double error_max = ErrorMax(heads, expected, position);
    for (uint32_t d = 0; d < heads.head_dim; ++d) {
      const double error = std::abs(out[offset + d] - expected.out[d]);
      ASSERT_LE(error, error_max) << "position " << position << " head " << head << " d " << d;
      accuracy.error_squares += error * error;
      accuracy.out_squares += expected.out[d] * expected.out[d];
    }
  }
}

constexpr Heads kHeads[] = {{3, 3, 64, 16}, {2, 1, 128, 16}, {2, 4, 128, 32}, {1, 8, 64, 32},
                            {3, 1, 32, 16}, {2, 3, 80, 32},  {1, 4, 80, 16},  {2, 8, 32, 16},
                            {1, 7, 40, 64}, {1, 2, 256, 16}, {1, 20, 64, 16}, {2, 6, 8, 16},
                            {1, 5, 72, 32}};

struct Chunk {
  uint32_t first_position;
  uint32_t rows;
};
// Contexts on both sides of every edge of blocks and spans, as decode rows and as chunks.
constexpr Chunk kChunks[] = {
    {0, 1},   {14, 1},   {15, 1},   {16, 1},   {254, 1},   {255, 1},  {256, 1}, {510, 1}, {511, 1},
    {512, 1}, {999, 1},  {4096, 1}, {0, 2},    {0, 15},    {0, 17},   {0, 300}, {7, 3},   {250, 5},
    {253, 7}, {256, 16}, {200, 57}, {511, 64}, {500, 300}, {4090, 7}, {1, 128}};

using Case = std::tuple<Implementation, Heads>;

class AttentionConformance : public testing::TestWithParam<Case> {};

TEST_P(AttentionConformance, MatchesDoublePrecision) {
  const auto& [implementation, heads] = GetParam();
  Rng rng(11);
  ThreadPool pool(2);
  const CachedSequence sequence(LayoutOf(heads), 4097, rng);
  Accuracy accuracy;
  for (const Chunk& chunk : kChunks) {
    // Sanitizers watch the kernels; what is compared with the truth tells them nothing.
    const uint32_t step = kSanitized ? chunk.rows : std::max(1u, chunk.rows / 5);
    const std::vector<float> q = RandomQueries(heads, chunk.rows, rng);
    const std::vector<float> out = RunSegments(
        implementation, heads, q, {{0, chunk.rows, chunk.first_position, sequence.blocks()}}, pool);
    for (uint32_t row = 0; row < chunk.rows; row += step) {
      SCOPED_TRACE(testing::Message() << "first " << chunk.first_position << " row " << row);
      const size_t offset = row * heads.row_floats();
      CompareRow(heads, sequence, q.data() + offset, out.data() + offset,
                 chunk.first_position + row, accuracy);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_LT(accuracy.relative_rms(), kRelativeRmsMax);
  RecordProperty("relative_rms_e9", static_cast<int>(accuracy.relative_rms() * 1e9));
}

// Scores a thousand apart: all but the best positions vanish, and nothing overflows.
TEST_P(AttentionConformance, HugeScores) {
  const auto& [implementation, heads] = GetParam();
  Rng rng(12);
  ThreadPool pool(1);
  const CachedSequence sequence(LayoutOf(heads), 600, rng);
  const std::vector<float> q = reference::RandomFloats(heads.row_floats(), 300, rng);
  const std::vector<float> out =
      RunSegments(implementation, heads, q, {{0, 1, 599, sequence.blocks()}}, pool);
  Accuracy accuracy;
  CompareRow(heads, sequence, q.data(), out.data(), 599, accuracy);
}

// --- AVX-512 beside AVX2: bit for bit -------------------------------------------------------

class AttentionVectors : public testing::TestWithParam<Heads> {};

TEST_P(AttentionVectors, WidthChangesNoBit) {
  const std::vector<Implementation> all = Implementations();
  if (all.size() < 3) GTEST_SKIP() << "this processor has no AVX-512";
  const Heads& heads = GetParam();
  Rng rng(17);
  ThreadPool pool(2);
  const CachedSequence sequence(LayoutOf(heads), 4097, rng);
  for (const Chunk& chunk : kChunks) {
    const std::vector<float> q = RandomQueries(heads, chunk.rows, rng);
    const std::vector<AttentionSegment> segments = {
        {0, chunk.rows, chunk.first_position, sequence.blocks()}};
    const std::vector<float> want = RunSegments(all[1], heads, q, segments, pool);
    const std::vector<float> got = RunSegments(all[2], heads, q, segments, pool);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
        << chunk.rows << " rows at " << chunk.first_position;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionVectors, testing::ValuesIn(kHeads),
                         [](const testing::TestParamInfo<Heads>& heads) {
                           return "case" + std::to_string(heads.index);
                         });

// --- Row-local: bit for bit -----------------------------------------------------------------

// Every row of a sequence by itself, on one thread.
std::vector<float> RowByRow(const Implementation& implementation, const Heads& heads,
                            const CachedSequence& sequence, const std::vector<float>& q) {
  ThreadPool pool(1);
  std::vector<float> out;
  const size_t row_floats = heads.row_floats();
  for (uint32_t row = 0; row * row_floats < q.size(); ++row) {
    const std::vector<float> one(q.begin() + row * row_floats, q.begin() + (row + 1) * row_floats);
    const auto result =
        RunSegments(implementation, heads, one, {{0, 1, row, sequence.blocks()}}, pool);
    out.insert(out.end(), result.begin(), result.end());
  }
  return out;
}

struct Session {
  uint32_t length;
  std::vector<float> q;     // of every position
  std::vector<float> want;  // row by row
  CachedSequence cache;
};

// Random segments of the sessions, in random order: lone rows and chunks of up to 200, at any
// place.
void CheckRandomBatch(const Implementation& implementation, const Heads& heads,
                      const std::vector<Session>& sessions, ThreadPool& pool, Rng& rng) {
  const size_t row_floats = heads.row_floats();
  std::vector<AttentionSegment> segments;
  std::vector<float> q;
  std::vector<float> want;
  uint32_t rows = 0;
  for (uint64_t left = 1 + rng.Below(6); left > 0; --left) {
    const Session& session = sessions[rng.Below(sessions.size())];
    const auto first = static_cast<uint32_t>(rng.Below(session.length));
    const uint64_t limit = std::min<uint64_t>(session.length - first, rng.Chance(0.5) ? 1 : 200);
    const auto count = static_cast<uint32_t>(1 + rng.Below(limit));
    segments.push_back({rows, count, first, session.cache.blocks()});
    for (auto [from, to] : {std::pair{&session.q, &q}, std::pair{&session.want, &want}}) {
      to->insert(to->end(), from->begin() + first * row_floats,
                 from->begin() + (first + count) * row_floats);
    }
    rows += count;
  }
  std::shuffle(segments.begin(), segments.end(), std::mt19937(static_cast<uint32_t>(rng.Next())));
  const std::vector<float> out = RunSegments(implementation, heads, q, segments, pool);
  ASSERT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0);
}

TEST_P(AttentionConformance, RowsAreBitEqualInAnyBatch) {
  const auto& [implementation, heads] = GetParam();
  Rng rng(13);
  std::vector<Session> sessions;
  for (const uint32_t length : {5u, 300u, 700u}) {
    Session session{length,
                    RandomQueries(heads, length, rng),
                    {},
                    CachedSequence(LayoutOf(heads), length, rng)};
    session.want = RowByRow(implementation, heads, session.cache, session.q);
    sessions.push_back(std::move(session));
  }
  for (const uint32_t threads : {1u, 2u, 4u}) {
    ThreadPool pool(threads);
    for (int batch = 0; batch < (kSanitized ? 4 : 12); ++batch) {
      SCOPED_TRACE(testing::Message() << threads << " threads, batch " << batch);
      CheckRandomBatch(implementation, heads, sessions, pool, rng);
      if (HasFatalFailure()) return;
    }
  }
}

// A lone long row is split over the threads, its spans merged afterwards.
TEST_P(AttentionConformance, SplitRowsAreBitEqual) {
  const auto& [implementation, heads] = GetParam();
  Rng rng(14);
  const uint32_t length = 3000;
  const CachedSequence sequence(LayoutOf(heads), length, rng);
  const std::vector<float> q = RandomQueries(heads, 4, rng);
  const std::vector<AttentionSegment> segments = {{0, 1, length - 1, sequence.blocks()},
                                                  {1, 3, length - 3, sequence.blocks()}};
  ThreadPool one(1);
  const std::vector<float> want = RunSegments(implementation, heads, q, segments, one);
  for (const uint32_t threads : {2u, 3u, 4u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(RunSegments(implementation, heads, q, segments, pool), want) << threads;
    const std::vector<float> first(q.begin(), q.begin() + heads.row_floats());
    EXPECT_EQ(RunSegments(implementation, heads, first, {segments[0]}, pool),
              std::vector<float>(want.begin(), want.begin() + heads.row_floats()));
  }
}

// What lies behind the last row of a segment is not seen: neither NaN in slots without a position,
// nor positions that are there, nor blocks that the table does not have.
TEST_P(AttentionConformance, NothingBehindTheLastRowMatters) {
  const auto& [implementation, heads] = GetParam();
  ThreadPool pool(2);
  for (const uint32_t length : {3u, 250u, 262u, 530u}) {
    Rng rng(16);
    const CachedSequence exact(LayoutOf(heads), length, rng);
    Rng same(16);
    const CachedSequence longer(LayoutOf(heads), length + 300, same);
    const size_t block_count = (length + heads.block_tokens - 1) / heads.block_tokens;
    std::vector<const std::byte*> table(longer.blocks(), longer.blocks() + block_count);
    table.resize(block_count + 32, nullptr);
    for (const uint32_t rows : {1u, 3u}) {
      const std::vector<float> q = RandomQueries(heads, rows, rng);
      const std::vector<float> want =
          RunSegments(implementation, heads, q, {{0, rows, length - rows, exact.blocks()}}, pool);
      const std::vector<float> got =
          RunSegments(implementation, heads, q, {{0, rows, length - rows, table.data()}}, pool);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << length << " positions, " << rows << " rows";
      EXPECT_TRUE(std::ranges::none_of(got, [](float x) { return std::isnan(x); }));
    }
  }
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  const auto& [implementation, heads] = info.param;
  return std::string(implementation.name) + "_kv" + std::to_string(heads.kv_heads) + "_group" +
         std::to_string(heads.group) + "_dim" + std::to_string(heads.head_dim) + "_block" +
         std::to_string(heads.block_tokens);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionConformance,
                         testing::Combine(testing::ValuesIn(Implementations()),
                                          testing::ValuesIn(kHeads)),
                         CaseName);

// More sums of single spans than are kept at once: the spans are done in several waves.
TEST(AttentionWaves, AreBitEqual) {
  const Heads heads{1, 8, 128, 64};
  const uint32_t length = 45000;
  const uint32_t rows = 24;
  Rng rng(15);
  const CachedSequence sequence(LayoutOf(heads), length, rng);
  const std::vector<float> q = RandomQueries(heads, rows, rng);
  const std::vector<AttentionSegment> segments = {{0, rows, length - rows, sequence.blocks()}};
  ThreadPool one(1);
  ThreadPool four(4);
  for (const Implementation& implementation : Implementations()) {
    EXPECT_EQ(RunSegments(implementation, heads, q, segments, four),
              RunSegments(implementation, heads, q, segments, one))
        << implementation.name;
  }
}

}  // namespace
}  // namespace cairn
