// The operations of a forward pass, as a backend offers them. Plain structs in, no device type out.
//
// Row-local arithmetic (DESIGN 5): the arithmetic of one row is a fixed sequence that depends on
// that row's inputs alone: a fixed order over k in a product, attention in spans of kAttentionSpan
// positions merged in increasing order by log-sum-exp, activations quantised per (row, group of
// 32). So the bits of a row are the same at any batch, chunk, place in the batch and number of
// threads.
//
// All matrices are row-major float32 unless said otherwise; `row_count` rows are rows of the batch.
// Pointers are device addresses unless said otherwise, and what they point to must stay valid until
// the stream has done the work. The structs themselves and the arrays that their spans name are the
// host's, and are read before the call returns. Shapes are the caller's duty (CHECK). An operation
// that fails says so when its stream is synchronized. Threads: an Ops, its Batches and the compute
// Stream given to it belong to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "kernels/device.h"
#include "kernels/kv_layout.h"

namespace cairn {

inline constexpr uint32_t kAttentionSpan = 256;  // positions; a multiple of every block size

// kExact: int16 activations (or better), as good as float32 for all practical purposes.
// kFast: int8 activations where the weights are 4-bit, except in products that ask for more
// (MatMulOutput::fine). One mode for the life of a process.
enum class ComputeMode { kExact, kFast };
inline const char* ComputeModeName(ComputeMode mode) {
  return mode == ComputeMode::kExact ? "exact" : "fast";
}

// Tensor types of a model file (GGUF's names).
enum class TensorType : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1 };
inline constexpr uint32_t kQuantGroup = 32;  // elements that share scales in Q8_0, Q4_0, Q4_1

// Elements per group and bytes per group of a type: {1, 4} for F32, {32, 34} for Q8_0.
struct TensorTypeTraits {
  const char* name;
  uint32_t group_elements;
  uint32_t group_bytes;
};
constexpr TensorTypeTraits TraitsOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {"F32", 1, 4};
    case TensorType::kF16:
      return {"F16", 1, 2};
    case TensorType::kBF16:
      return {"BF16", 1, 2};
    case TensorType::kQ8_0:
      return {"Q8_0", 32, 34};  // f16 scale d, int8 q[32]: w = d*q
    case TensorType::kQ4_0:
      return {"Q4_0", 32, 18};  // f16 d, nibbles: w = d*(q-8)
    case TensorType::kQ4_1:
      return {"Q4_1", 32, 20};  // f16 d, f16 m, nibbles: w = d*q + m
  }
  return {"?", 1, 1};
}

// A matrix as the file has it, in the host's memory: `rows` outputs of `cols` inputs each, row
// after row. In Q4 groups the low nibble of byte i is element i and the high nibble element i + 16.
struct MatrixView {
  TensorType type;
  uint32_t rows;
  uint32_t cols;  // a multiple of kQuantGroup for quantised types
  std::span<const std::byte> bytes;
};

// A weight matrix in the backend's own layout. Immutable; shared by all threads.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual uint32_t rows() const = 0;
  virtual uint32_t cols() const = 0;
  virtual size_t size_bytes() const = 0;
};

// One row of a batch: its token, its position, and the block that takes its K and V.
struct BatchRow {
  uint32_t token;  // below the rows of the embedding table
  uint32_t position;
  std::byte* block;  // null: K and V of this position are in place already; write nothing
};

// A run of rows at consecutive positions of one sequence. Row first_row + i stands at
// first_position + i and attends to positions 0 .. first_position + i.
struct AttentionSegment {
  uint32_t first_row;
  uint32_t row_count;
  uint32_t first_position;
  // In the host's memory: the address of every block from position 0; any memory the backend reads.
  const std::byte* const* blocks;
};

// What all operations of one pass share: which rows, and which blocks they attend to. It crosses to
// the device once a pass, to addresses that stay the same for as long as the Batch lives.
class Batch {
 public:
  virtual ~Batch() = default;

  // From now on the batch is this one, for operations on `stream`. The arrays, the host's, stay as
  // they are until the next Set.
  void Set(std::span<const BatchRow> rows, std::span<const AttentionSegment> segments,
           Stream& stream) {
    rows_ = rows;
    segments_ = segments;
    Send(stream);
  }
  std::span<const BatchRow> rows() const { return rows_; }
  std::span<const AttentionSegment> segments() const { return segments_; }

 private:
  virtual void Send(Stream& /*stream*/) {}  // nothing to do where host memory plays the device

  std::span<const BatchRow> rows_;
  std::span<const AttentionSegment> segments_;
};

struct BatchLimits {
  uint32_t rows_max = 0;            // and segments, which have at least one row each
  uint32_t contexts_max = 0;        // different tables of blocks
  uint32_t context_blocks_max = 0;  // of one table
  uint32_t block_tokens = 0;
};

// What all passes of a model stay within.
struct PassLimits {
  BatchLimits batch;
  uint32_t logits_max = 0;       // rows of the product that is as wide as the vocabulary
  uint32_t vocabulary_size = 0;  // and of TopLogits
  uint32_t cols_max = 0;         // of a MatMul
  uint64_t matrix_max = 0;       // elements of one weight
  uint32_t head_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t head_dim = 0;
};

// out[r] = the table row of row r's token, as float32, for all rows of the batch.
struct EmbedArgs {
  const Weight* table;
  const Batch* batch;
  float* out;  // [row_count, table->cols()]
};

// x += delta (unless delta is null), then out = x * gain / rms(x), row by row, where
// rms(x) = sqrt(mean(x^2) + epsilon). RMSNorm: Zhang and Sennrich, 2019.
struct RmsNormArgs {
  float* x;            // [row_count, width]; changed only by delta
  const float* delta;  // [row_count, width] or null
  const float* gain;   // [width]
  float* out;          // [row_count, width]; may be delta
  uint32_t row_count;
  uint32_t width;
  float epsilon;
};

// y_i = x * W_i^T for each output: products that share x share its quantisation.
struct MatMulOutput {
  const Weight* weight;
  float* y;           // [row_count, weight->rows()]
  bool fine = false;  // rounds x as exact mode does, in fast mode too
};
struct MatMulArgs {
  const float* x;  // [row_count, cols]
  uint32_t row_count;
  std::span<const MatMulOutput> outputs;  // at most 4, all with the same cols
};

// Rotates q and k by position (RoPE, Su et al. 2021; adjacent pairs, as the llama architecture has
// it), multiplies q by q_scale, and writes k and v as f16 into each row's block at
// position % block_tokens; for all rows of the batch.
struct RopeWriteKvArgs {
  float* q;              // [row_count, head_count, head_dim], in place
  const float* k;        // [row_count, kv_head_count, head_dim]
  const float* v;        // [row_count, kv_head_count, head_dim]
  const float* cos_sin;  // [position, rotary_dim / 2, 2]
  const Batch* batch;
  const KvLayout* layout;  // the host's
  uint32_t layer;
  uint32_t head_count;
  uint32_t rotary_dim;  // even, at most head_dim; the rest is passed through
  float q_scale;        // 1 / sqrt(head_dim)
};

// Causal attention over paged K and V (PagedAttention: Kwon et al. 2023). `q` is already scaled.
// head_count is a multiple of kv_head_count. Blocks hold finite values throughout.
struct PagedAttentionArgs {
  const float* q;  // [rows, head_count, head_dim]
  float* out;      // [rows, head_count, head_dim]
  const Batch* batch;
  uint32_t
      segment_count;  // the first so many of the batch; the rows of the others stay as they are
  const KvLayout* layout;  // the host's
  uint32_t layer;
  uint32_t head_count;
};

// out = silu(gate) * up, elementwise (SwiGLU: Shazeer 2020). out may be gate.
struct SwiGluArgs {
  const float* gate;
  const float* up;
  float* out;
  uint32_t row_count;
  uint32_t width;
};

// A logit and the id that has it. Ranks are by value, then by lower id. A NaN has the value
// -infinity, infinity that of the largest float, and negative zero is zero.
struct RankedLogit {
  float value;
  uint32_t id;
  friend bool operator==(const RankedLogit&, const RankedLogit&) = default;
};
constexpr bool RanksBefore(const RankedLogit& a, const RankedLogit& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// out[r] = the `count` logits of highest rank of row r, in order. Exact.
struct TopLogitsArgs {
  const float* logits;  // [row_count, width]
  uint32_t row_count;
  uint32_t width;
  uint32_t count;    // in 1..min(kTopLogitsMax, width)
  RankedLogit* out;  // [row_count, count]
};
inline constexpr uint32_t kTopLogitsMax = 256;

class Ops {
 public:
  virtual ~Ops() = default;

  // Takes a copy in the backend's layout; `view` is not needed afterwards. kInvalidArgument for a
  // shape that the backend cannot take.
  virtual Result<std::unique_ptr<Weight>> Pack(const MatrixView& view) = 0;
  // Takes the memory for a batch within the limits at once. Ends before the Ops does.
  virtual Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) = 0;
  // Of the device's memory, what operations of such passes take as they go, and keep: at most so
  // much, beside weights and batches.
  virtual uint64_t ScratchBytesMax(const PassLimits& /*limits*/) const { return 0; }

  virtual void Embed(const EmbedArgs& args, Stream& stream) = 0;
  virtual void RmsNorm(const RmsNormArgs& args, Stream& stream) = 0;
  virtual void MatMul(const MatMulArgs& args, Stream& stream) = 0;
  virtual void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) = 0;
  virtual void PagedAttention(const PagedAttentionArgs& args, Stream& stream) = 0;
  virtual void SwiGlu(const SwiGluArgs& args, Stream& stream) = 0;
  virtual void TopLogits(const TopLogitsArgs& args, Stream& stream) = 0;

  // A pass of a few rows has so many operations, each so short, that giving them takes as long as
  // doing them. When each segment has one row, they may be recorded once, and repeated from then on
  // with what the batch and memory hold by then.
  //
  // To how many rows such a batch is filled up, so that few recordings serve all sizes; `row_count`
  // itself where nothing is recorded.
  virtual uint32_t RowsToRepeat(uint32_t row_count) const { return row_count; }
  // Does `operations`, or repeats them. For a batch of so many rows, one a segment, they are always
  // the same, with the same arguments.
  virtual void Repeat(const Batch& /*batch*/, const std::function<void()>& operations,
                      Stream& /*stream*/) {
    operations();
  }
};

}  // namespace cairn
