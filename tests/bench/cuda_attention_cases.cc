#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tests/bench/cuda_cases.h"

namespace cairn {
namespace {

constexpr double kDecodeGoal = 0.80;  // of the copy bandwidth, at the longest context
// Of cuBLAS's rate. Exact mode multiplies twice for each product that is counted.
constexpr double kPrefillGoalFast = 0.5, kPrefillGoalExact = 0.25;
constexpr size_t kColdBytes = size_t{512} << 20;  // no cache holds so much

struct Heads {
  uint32_t kv_heads = 8;
  uint32_t group = 4;
  uint32_t head_dim = 128;
  uint32_t block_tokens = 16;
  uint32_t head_count() const { return kv_heads * group; }
};
constexpr Heads kTinyHeads = {1, 2, 64, 16};

// Sequences of one length, each in blocks of its own with random contents, and the batch that
// attends with the last `rows` positions of each.
class AttentionProblem {
 public:
  struct Size {
    uint32_t sequences, rows, context, layers;
  };
  AttentionProblem(Backend& backend, const Heads& heads, const Size& size)
      : backend_(backend), heads_(heads), size_(size) {
    layout_.layer_count = size.layers;
    layout_.kv_head_count = heads.kv_heads;
    layout_.head_dim = heads.head_dim;
    layout_.block_tokens = heads.block_tokens;
    stream_ = Require(backend.device->NewStream(StreamUse::kCompute));
    FillBlocks();
    const size_t row_floats = size_t{heads.head_count()} * heads.head_dim;
    const size_t floats = size_t{size.sequences} * size.rows * row_floats;
    q_ = Require(backend.device->Allocate(floats * sizeof(float)));
    out_ = Require(backend.device->Allocate(floats * sizeof(float)));
    SendQueries(floats);
    const uint32_t blocks = BlocksOf(size.context);
    batch_ = Require(backend.ops->NewBatch({.rows_max = size.sequences * size.rows,
                                            .contexts_max = size.sequences,
                                            .context_blocks_max = blocks,
                                            .block_tokens = heads.block_tokens}));
    for (uint32_t i = 0; i < size.sequences; ++i) {
      segments_.push_back({.first_row = i * size.rows,
                           .row_count = size.rows,
                           .first_position = size.context - size.rows,
                           .blocks = &tables_[size_t{i} * blocks]});
    }
    rows_.resize(size_t{size.sequences} * size.rows);
    batch_->Set(rows_, segments_, *stream_);
  }

  double Seconds(const Effort& effort) {
    return DeviceSeconds(*stream_, effort, [&] { Attend(); });
  }
  // Of K and V that one layer's attention reads.
  double layer_bytes() const {
    return static_cast<double>(size_.sequences) * size_.context * layout_.token_bytes() /
           size_.layers;
  }
  // Two products of a head's dimensions for each query and position that it sees.
  double layer_operations() const {
    const double seen = size_.rows * (size_.context - (size_.rows - 1) / 2.0);
    return 4.0 * heads_.head_count() * heads_.head_dim * seen * size_.sequences;
  }

 private:
  uint32_t BlocksOf(uint32_t context) const {
    return (context + heads_.block_tokens - 1) / heads_.block_tokens;
  }

  // One random block, and copies of it.
  void FillBlocks() {
    const size_t bytes = layout_.block_bytes();
    const size_t count = size_t{size_.sequences} * BlocksOf(size_.context);
    blocks_ = Require(backend_.device->Allocate(count * bytes));
    Rng rng(3);
    std::vector<uint16_t> halves(bytes / sizeof(uint16_t));
    for (uint16_t& half : halves) half = static_cast<uint16_t>(0x3000 | (rng.Next() & 0x83ff));
    stream_->Copy(blocks_->data(), halves.data(), bytes);
    for (size_t done = 1; done < count; done *= 2) {
      const size_t more = std::min(done, count - done);
      stream_->Copy(blocks_->data() + done * bytes, blocks_->data(), more * bytes);
    }
    Require(stream_->Synchronize());
    for (size_t i = 0; i < count; ++i) tables_.push_back(blocks_->data() + i * bytes);
    for (size_t i = count - 1; i > 0; --i) std::swap(tables_[i], tables_[rng.Below(i + 1)]);
  }

  void SendQueries(size_t floats) {
    Rng rng(4);
    std::vector<float> values(floats);
    for (float& value : values) value = static_cast<float>(rng.Uniform() - 0.5);
    stream_->Copy(q_->data(), values.data(), floats * sizeof(float));
    Require(stream_->Synchronize());
  }

  void Attend() {
    backend_.ops->PagedAttention({.q = reinterpret_cast<const float*>(q_->data()),
                                  .out = reinterpret_cast<float*>(out_->data()),
                                  .batch = batch_.get(),
                                  .segment_count = size_.sequences,
                                  .layout = &layout_,
                                  .layer = next_layer_++ % size_.layers,
                                  .head_count = heads_.head_count()},
                                 *stream_);
  }

  Backend& backend_;
  const Heads heads_;
  const Size size_;
  KvLayout layout_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Buffer> blocks_, q_, out_;
  std::vector<const std::byte*> tables_;
  std::vector<AttentionSegment> segments_;
  std::vector<BatchRow> rows_;
  std::unique_ptr<Batch> batch_;
  uint32_t next_layer_ = 0;
};

}  // namespace

void MeasureDecodeAttention(Backend& backend, const CaseOptions& options) {
  const Heads heads = options.tiny ? kTinyHeads : Heads();
  const std::vector<uint32_t> contexts =
      options.tiny ? std::vector<uint32_t>{40} : std::vector<uint32_t>{1024, 8192, 32768};
  const std::vector<uint32_t> row_counts =
      options.tiny ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{1, 8, 64};
  for (const uint32_t context : contexts) {
    for (const uint32_t rows : row_counts) {
      const size_t layer_bytes =
          size_t{4} * heads.kv_heads * heads.head_dim * context * rows;  // K and V, float16
      const auto layers = static_cast<uint32_t>(
          std::clamp<size_t>(options.tiny ? 1 : kColdBytes / layer_bytes, 1, 32));
      AttentionProblem problem(backend, heads, {rows, 1, context, layers});
      const double rate = problem.layer_bytes() / problem.Seconds(options.effort);
      Print({.name = "attention, " + std::to_string(rows) + " rows at " + std::to_string(context),
             .value = rate * 1e-9,
             .unit = "GB/s",
             .ratio = rate / options.peaks.copy_bytes_s,
             .of = "copies",
             .at_least = context == contexts.back() ? kDecodeGoal : 0});
    }
  }
}

void MeasurePrefillAttention(Backend& backend, ComputeMode mode, const CaseOptions& options) {
  const Heads heads = options.tiny ? kTinyHeads : Heads();
  struct Chunk {
    uint32_t rows, context;
  };
  const std::vector<Chunk> chunks =
      options.tiny ? std::vector<Chunk>{{70, 90}}
                   : std::vector<Chunk>{{512, 512}, {2048, 2048}, {512, 8192}, {2048, 32768}};
  for (const Chunk& chunk : chunks) {
    AttentionProblem problem(backend, heads, {1, chunk.rows, chunk.context, 1});
    const double rate = problem.layer_operations() / problem.Seconds(options.effort);
    const double side = std::cbrt(problem.layer_operations() / 2);
    const uint32_t rounded = std::max(8u, static_cast<uint32_t>(side) / 64 * 64);
    const double dense =
        MeasureDenseRate(*backend.device, rounded, rounded, rounded, options.effort);
    const bool is_long = chunk.context == chunks.back().context;
    const double goal = mode == ComputeMode::kFast ? kPrefillGoalFast : kPrefillGoalExact;
    Print({.name = std::string("attention, chunk of ") + std::to_string(chunk.rows) + " up to " +
                   std::to_string(chunk.context) + ", " + ComputeModeName(mode),
           .value = rate * 1e-12,
           .unit = "TFLOP/s",
           .ratio = rate / dense,
           .of = "cuBLAS",
           .at_least = is_long ? goal : 0});
  }
}

}  // namespace cairn
