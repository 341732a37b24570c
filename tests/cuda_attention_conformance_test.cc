// Paged attention by the CUDA kernels: against a reference in double precision, and against itself,
// bit for bit, over batches and chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/attention_cache.h"
#include "tests/cuda_conformance.h"

namespace cairn {
namespace {

struct Heads {
  uint32_t kv_heads;
  uint32_t group;
  uint32_t head_dim;
  uint32_t block_tokens;

  uint32_t head_count() const { return kv_heads * group; }
  size_t row_floats() const { return size_t{head_count()} * head_dim; }
};
// Head dimensions on both sides of the kernels' 64, 128 and 256; groups that fill a part of a tile
// of 16 queries, and more than one.
constexpr Heads kHeads[] = {{2, 3, 64, 16}, {1, 4, 128, 32}, {1, 8, 80, 64},
                            {2, 1, 32, 16}, {1, 20, 8, 16},  {1, 2, 256, 16}};

constexpr uint32_t kLayers = 2;
constexpr uint32_t kLayer = 1;  // not the first, so that the layer's offset matters

struct Chunk {
  uint32_t first_position;
  uint32_t rows;
};

// A sequence with its blocks in the device's memory; what lies behind its end is NaN, and its table
// has no blocks there.
class DeviceSequence {
 public:
  template <class MakeBlocks>
  DeviceSequence(const KvLayout& layout, uint32_t length, Rng& rng, const MakeBlocks& make_blocks)
      : host(layout, length, rng) {
    const uint32_t count = (length + layout.block_tokens - 1) / layout.block_tokens;
    std::vector<std::byte> bytes;
    for (uint32_t i = 0; i < count; ++i) {
      bytes.insert(bytes.end(), host.blocks()[i], host.blocks()[i] + layout.block_bytes());
    }
    std::byte* const first = make_blocks(bytes);
    for (uint32_t i = 0; i < count; ++i) table.push_back(first + i * layout.block_bytes());
  }

  CachedSequence host;
  std::vector<const std::byte*> table;
};

struct ReferenceQuery {
  std::vector<double> out;
  double score_magnitude;  // the largest sum over d of |q k|, in units of log2
  double key_sum;          // the largest sum over d of |k|
  double value_max;        // the largest |v|
};

ReferenceQuery Reference(const Heads& heads, const CachedSequence& sequence, const float* q,
                         uint32_t head, uint32_t position) {
  const uint32_t kv_head = head / heads.group;
  ReferenceQuery result{std::vector<double>(heads.head_dim), 0, 0, 0};
  std::vector<double> weights(position + 1);
  for (uint32_t t = 0; t <= position; ++t) {
    double magnitude = 0, keys = 0;
    for (uint32_t d = 0; d < heads.head_dim; ++d) {
      const double key = reference::HalfValue(sequence.Key(kLayer, kv_head, t, d));
      weights[t] += q[d] * key;
      magnitude += std::abs(q[d] * key) * M_LOG2E;
      keys += std::abs(key);
    }
    result.score_magnitude = std::max(result.score_magnitude, magnitude);
    result.key_sum = std::max(result.key_sum, keys);
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
// A query's element is off by 2 u for log2 e, and its two float16 by 2 u more or u / 2 absolutely;
// its products with a key are exact, and their 2 head_dim sums, which the hardware may truncate,
// add 2 u each: a score is off by (4 head_dim + 4) u S + u / 2 K, S and K being the largest sums of
// magnitudes of products and of keys. The maximum is one of the scores, and subtracting it adds u
// times a difference of at most 2 S. So a weight is off relatively by ln 2 times twice that, plus
// 4 u for the power itself, and absolutely, beside a largest weight of 1, by u / 2 for its two
// float16. Sums of n <= 256 weights add n u for the divisor and 4 n u for the values, a new maximum
// of a tile of 32 positions less than 4 u, and the merge of a span less than 8 u. A relative error
// e of all weights moves their mean of values, of magnitude V at most, by 2 e V.
//
// In fast mode a chunk has one float16 for each query element and weight: 2^-11 = 8192 u for both.
double ErrorMax(const Heads& heads, const ReferenceQuery& query, uint32_t position,
                ComputeMode mode) {
  const uint32_t span_count = position / kAttentionSpan + 1;
  const double tokens =
      mode == ComputeMode::kFast ? position + 1 : std::min(position + 1, kAttentionSpan);
  const double half = mode == ComputeMode::kFast ? 8192 : 0;
  const double score = (4 * heads.head_dim + 6 + half) * query.score_magnitude + query.key_sum / 2;
  const double weight = 2 * M_LN2 * score + 4 + half;
  return 2 * query.value_max * kUlp *
         (weight + 5.5 * tokens + 4 * std::ceil(tokens / 32) + 8 * span_count);
}

// Independent errors mostly cancel, and a wrong term could hide below that bound: the RMS error may
// be this much of the RMS of the output. The one measured is below 6e-7, in fast mode 4e-4.
double RelativeRmsMax(ComputeMode mode) { return mode == ComputeMode::kFast ? 1e-3 : 2e-6; }

class CudaAttention : public CudaConformance {
 protected:
  static KvLayout LayoutOf(const Heads& heads) {
    return AttentionLayout(kLayers, heads.kv_heads, heads.head_dim, heads.block_tokens);
  }
  // Scaled queries whose scores have a deviation of about 2, so that softmax has peaks.
  static std::vector<float> RandomQueries(const Heads& heads, uint32_t rows, Rng& rng) {
    return reference::RandomFloats(rows * heads.row_floats(), 2.0 / std::sqrt(heads.head_dim), rng);
  }
  DeviceSequence Sequence(const Heads& heads, uint32_t length, Rng& rng) {
    return DeviceSequence(LayoutOf(heads), length, rng, [&](const std::vector<std::byte>& bytes) {
      blocks_.push_back(std::make_unique<Array<std::byte>>(*this, bytes));
      return blocks_.back()->data();
    });
  }
  void TearDown() override {
    blocks_.clear();
    CudaConformance::TearDown();
  }

  // With room for the partial results of `contexts_max` contexts.
  std::vector<float> Run(const Heads& heads, const std::vector<float>& q_values,
                         const std::vector<AttentionSegment>& segments,
                         uint32_t contexts_max = kLimits.rows_max) {
    Floats q(*this, q_values), out(*this, std::vector<float>(q_values.size(), NAN));
    const KvLayout layout = LayoutOf(heads);
    const auto batch = *ops().NewBatch({.rows_max = kLimits.rows_max,
                                        .contexts_max = contexts_max,
                                        .context_blocks_max = kLimits.context_blocks_max,
                                        .block_tokens = heads.block_tokens});
    batch->Set({}, segments, stream());
    ops().PagedAttention({.q = q.data(),
                          .out = out.data(),
                          .batch = batch.get(),
                          .segment_count = static_cast<uint32_t>(segments.size()),
                          .layout = &layout,
                          .layer = kLayer,
                          .head_count = heads.head_count()},
                         stream());
    return out.Read();
  }

 private:
  std::vector<std::unique_ptr<Array<std::byte>>> blocks_;
};

struct Accuracy {
  double error_squares = 0;
  double out_squares = 0;
  double relative_rms() const { return std::sqrt(error_squares / out_squares); }
};

void CompareRow(const Heads& heads, const CachedSequence& sequence, const float* q,
                const float* out, uint32_t position, ComputeMode mode, Accuracy& accuracy) {
  for (uint32_t head = 0; head < heads.head_count(); ++head) {
    const size_t offset = size_t{head} * heads.head_dim;
    const ReferenceQuery expected = Reference(heads, sequence, q + offset, head, position);
    const double error_max = ErrorMax(heads, expected, position, mode);
    for (uint32_t d = 0; d < heads.head_dim; ++d) {
      const double error = std::abs(out[offset + d] - expected.out[d]);
      ASSERT_LE(error, error_max) << "position " << position << " head " << head << " d " << d;
      accuracy.error_squares += error * error;
      accuracy.out_squares += expected.out[d] * expected.out[d];
    }
  }
}

// Contexts on both sides of every edge of tiles, blocks and spans; rows that are few, and chunks.
std::vector<Chunk> ChunksFor(const Heads& heads) {
  std::vector<Chunk> chunks = {{0, 1},   {14, 1},  {15, 1},  {16, 1}, {30, 1}, {32, 1},
                               {254, 1}, {255, 1}, {256, 1}, {0, 3},  {250, 8}};
  const uint32_t few = 64 / heads.group;  // the most rows that go to the kernel of few queries
  chunks.push_back({290 - few, few});
  chunks.push_back({0, few + 1});
  chunks.push_back({280 - few, few + 9});
  return chunks;
}

TEST_P(CudaAttention, MatchesDoublePrecision) {
  for (const Heads& heads : std::span(kHeads).first(is_thorough() ? std::size(kHeads) : 2)) {
    SCOPED_TRACE("dimension " + std::to_string(heads.head_dim));
    Rng rng(11);
    const DeviceSequence sequence = Sequence(heads, 300, rng);
    Accuracy accuracy;
    std::vector<Chunk> chunks = ChunksFor(heads);
    if (!is_thorough()) chunks.erase(chunks.begin(), chunks.end() - 5);
    for (const Chunk& chunk : chunks) {
      const std::vector<float> q = RandomQueries(heads, chunk.rows, rng);
      const std::vector<float> out =
          Run(heads, q, {{0, chunk.rows, chunk.first_position, sequence.table.data()}});
      for (uint32_t row = 0; row < chunk.rows; row += std::max(1u, chunk.rows / 3)) {
        SCOPED_TRACE(testing::Message() << "first " << chunk.first_position << " row " << row);
        const size_t offset = row * heads.row_floats();
        CompareRow(heads, sequence.host, &q[offset], &out[offset], chunk.first_position + row,
                   mode(), accuracy);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_LT(accuracy.relative_rms(), RelativeRmsMax(mode()));
    RecordProperty("relative_rms_e9", static_cast<int>(accuracy.relative_rms() * 1e9));
  }
}

// Scores a thousand apart: all but the best positions vanish, and nothing overflows.
TEST_P(CudaAttention, HugeScores) {
  const Heads& heads = kHeads[0];
  Rng rng(12);
  const DeviceSequence sequence = Sequence(heads, 300, rng);
  const std::vector<float> q = reference::RandomFloats(30 * heads.row_floats(), 300, rng);
  const std::vector<float> out = Run(heads, q, {{0, 30, 270, sequence.table.data()}});
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  if (mode() == ComputeMode::kFast) return;  // what decides then is lost in a float16
  Accuracy accuracy;
  CompareRow(heads, sequence.host, &q[29 * heads.row_floats()], &out[29 * heads.row_floats()], 299,
             mode(), accuracy);
}

// Segments of three sequences, few rows and many, some in two parts, at any place: every row has
// the bits that it has alone. In fast mode this holds for rows that are few.
TEST_P(CudaAttention, RowsAreBitEqualInAnyBatch) {
  for (const Heads& heads : {kHeads[4], kHeads[1], kHeads[0]}) {
    if (!is_thorough() && heads.head_dim > 8) break;
    SCOPED_TRACE("dimension " + std::to_string(heads.head_dim));
    Rng rng(13);
    const DeviceSequence sequences[] = {Sequence(heads, 5, rng), Sequence(heads, 300, rng),
                                        Sequence(heads, 530, rng)};
    const uint32_t many = 64 / heads.group + 7;
    const struct {
      int sequence;
      Chunk chunk;
    } parts[] = {{1, {299, 1}}, {2, {525 - many, many}}, {0, {0, 5}},
                 {2, {529, 1}}, {1, {250, many}},        {0, {4, 1}}};
    std::vector<AttentionSegment> segments;
    uint32_t rows = 0;
    for (const auto& part : parts) {
      segments.push_back({rows, part.chunk.rows, part.chunk.first_position,
                          sequences[part.sequence].table.data()});
      rows += part.chunk.rows;
    }
    const std::vector<float> q = RandomQueries(heads, rows, rng);
    std::reverse(segments.begin() + 1, segments.end());
    const std::vector<float> out = Run(heads, q, segments);
    for (const AttentionSegment& segment : segments) {
      if (mode() == ComputeMode::kFast && segment.row_count * heads.group > 64) continue;
      for (uint32_t i = 0; i < segment.row_count; i += i == 0 ? 1 : 9) {
        const size_t offset = (segment.first_row + i) * heads.row_floats();
        const std::vector<float> lone_q(q.begin() + offset,
                                        q.begin() + offset + heads.row_floats());
        const std::vector<float> lone =
            Run(heads, lone_q, {{0, 1, segment.first_position + i, segment.blocks}});
        ASSERT_EQ(std::memcmp(lone.data(), &out[offset], lone.size() * sizeof(float)), 0)
            << "row " << segment.first_row + i;
      }
    }
  }
}

// What lies behind the last row of a segment is not seen, and the rows of segments that are not
// asked for stay as they are.
// The last one is attended in a chunk: in fast mode with one float16 for each query element.
TEST_P(CudaAttention, ShortSegmentsForWhichThereIsNoRoomAreChunks) {
  const Heads& heads = kHeads[3];
  Rng rng(21);
  constexpr uint32_t rows = 40;
  const DeviceSequence sequence = Sequence(heads, 300 + 4 * rows, rng);
  const std::vector<float> q = RandomQueries(heads, 4 * rows, rng);
  std::vector<AttentionSegment> segments;
  for (uint32_t i = 0; i < 4; ++i) {
    segments.push_back({i * rows, rows, 300 + i * rows, sequence.table.data()});
  }
  const std::vector<float> roomy = Run(heads, q, segments), narrow = Run(heads, q, segments, 1);
  const size_t same = mode() == ComputeMode::kExact ? q.size() : q.size() / 4 * 3;
  EXPECT_EQ(std::memcmp(roomy.data(), narrow.data(), same * sizeof(float)), 0);
  EXPECT_EQ(SameBits(roomy, narrow), mode() == ComputeMode::kExact);
}

TEST_P(CudaAttention, NothingElseMatters) {
  const Heads& heads = kHeads[3];
  const KvLayout layout = LayoutOf(heads);
  for (const uint32_t length : {3u, 262u}) {
    Rng rng(16), same(16);
    const DeviceSequence exact = Sequence(heads, length, rng);
    const DeviceSequence longer = Sequence(heads, length + 40, same);
    for (const uint32_t rows : {1u, 3u}) {
      const std::vector<float> q = RandomQueries(heads, rows, rng);
      const auto want = Run(heads, q, {{0, rows, length - rows, exact.table.data()}});
      const auto got = Run(heads, q, {{0, rows, length - rows, longer.table.data()}});
      EXPECT_TRUE(SameBits(got, want)) << length << " positions, " << rows << " rows";
      EXPECT_TRUE(std::ranges::none_of(got, [](float x) { return std::isnan(x); }));
    }
  }
  Rng rng(17);
  const DeviceSequence sequence = Sequence(heads, 70, rng);
  const std::vector<float> q_values = RandomQueries(heads, 2, rng);
  Floats q(*this, q_values), out(*this, std::vector<float>(q_values.size(), 5.0f));
  const std::vector<AttentionSegment> segments = {{1, 1, 69, sequence.table.data()},
                                                  {0, 1, 68, sequence.table.data()}};
  const Batch& batch = SetBatch({}, segments);
  ops().PagedAttention({.q = q.data(),
                        .out = out.data(),
                        .batch = &batch,
                        .segment_count = 1,
                        .layout = &layout,
                        .layer = kLayer,
                        .head_count = heads.head_count()},
                       stream());
  const std::vector<float> values = out.Read();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i] == 5.0f, i < heads.row_floats()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaAttention,
                         testing::Combine(testing::ValuesIn(CudaMachines()),
                                          testing::Values(ComputeMode::kExact, ComputeMode::kFast)),
                         MachineName);

}  // namespace
}  // namespace cairn
