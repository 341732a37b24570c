// The forward pass of the `llama` architecture over a ragged batch of rows (Touvron et al. 2023),
// in the order of the paper. Weights are packed into the backend's layout once; the file's pages
// are not needed afterwards. Everything that the operations use lies in the device's memory; what
// the host says of a batch crosses once a pass, and logits come back at its end.
// Threads: the engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint.h"
#include "engine/logits_reader.h"
#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"

namespace cairn {

// By layer, the event that says that what is copied there has come. May block until there is one.
using LayerArrivals = std::function<EventRef(uint32_t layer)>;

// Rows at consecutive positions of one sequence.
struct BatchSegment {
  std::span<const uint32_t> tokens;  // the ids, one a row; at least one
  uint32_t first_position = 0;
  std::byte* const* blocks = nullptr;  // the sequence's blocks from position 0 to the last row
  bool write_kv = true;                // false: K and V of these positions are in place already
  bool want_logits = false;            // of the last row
  uint32_t highest_count = 0;          // so many of them are enough, the highest; 0: all are wanted
};

struct ModelLimits {
  uint32_t context_length = 0;  // positions; beyond the trained length RoPE is interpolated
  uint32_t block_tokens = 16;
  uint32_t rows_max = 0;    // of a batch
  uint32_t logits_max = 0;  // rows of a batch that want logits
};

class Model {
 public:
  // Packs the weights; `progress` (may be null) hears the share that is done, 0..1.
  static Result<std::unique_ptr<Model>> Create(const Checkpoint& checkpoint, Backend backend,
                                               const ModelLimits& limits,
                                               void (*progress)(double share));

  // Runs the batch, writes K and V of its rows, and gives the logits of the segments that want
  // some, in their order and in the host's memory, until the next Forward (logits_reader.h). A
  // Status is what the device says of work that it could not do: then K and V of the rows are not
  // to be used.
  //
  // Several segments may be of one sequence, with holes between them whose blocks are in place.
  // `arrivals`, if not empty, are for blocks that are still being copied there: attention of a
  // layer begins when its event has passed, and all have when the call returns.
  Result<std::span<const RowLogits>> Forward(std::span<const BatchSegment> segments,
                                             const LayerArrivals& arrivals = {});

  const KvLayout& kv_layout() const { return layout_; }
  const ModelConfig& config() const { return config_; }
  Device& device() { return *backend_.device; }
  Stream& compute_stream() { return *stream_; }
  size_t weight_bytes() const { return weight_bytes_; }
  // Of the device's memory, what passes may still take as they go.
  uint64_t scratch_bytes_max() const;

 private:
  struct Layer {
    const float* attn_norm = nullptr;  // of constants_, as is the next
    const float* ffn_norm = nullptr;
    std::unique_ptr<Weight> q, k, v, o, gate, up, down;
  };
  // The rows of a batch as the operations want them: those with logits first.
  struct Rows {
    std::vector<BatchRow> rows;
    std::vector<AttentionSegment> segments;
    uint32_t logits_count = 0;
    uint32_t logits_segment_count = 0;
    bool is_decode = false;  // each segment has one row, whose logits are wanted

    uint32_t count() const { return static_cast<uint32_t>(rows.size()); }
  };

  Model(const Checkpoint& checkpoint, Backend backend, const ModelLimits& limits);
  Status PackWeights(const Checkpoint& checkpoint, void (*progress)(double share));
  Status SendConstants(const Checkpoint& checkpoint);
  Status AllocateActivations();
  BatchLimits batch_limits() const;
  void Arrange(std::span<const BatchSegment> segments);
  void FillUp(std::span<const BatchSegment> segments);
  void RunLayers(const LayerArrivals& arrivals);
  void PlaceRows(const BatchSegment& segment, size_t begin, size_t end);
  void Normalize(const float* delta, const float* gain, uint32_t row_count);
  Result<std::span<const RowLogits>> TakeLogits(std::span<const BatchSegment> segments);
  void Project(const Layer& layer, uint32_t index, uint32_t row_count);
  void Attend(const Layer& layer, uint32_t index, uint32_t row_count);
  void FeedForward(const Layer& layer, uint32_t row_count);

  const ModelConfig config_;
  const ModelLimits limits_;
  Backend backend_;
  KvLayout layout_;
  std::unique_ptr<Stream> stream_;

  std::unique_ptr<Weight> embedding_;
  std::unique_ptr<Weight> untied_output_;  // null: the embedding is the output matrix too
  std::vector<Layer> layers_;
  size_t weight_bytes_ = 0;

  std::unique_ptr<Buffer> constants_;
  const float* output_norm_ = nullptr;  // [width]
  const float* cos_sin_ = nullptr;      // [position, rope_dim / 2, 2]

  std::unique_ptr<Buffer> activations_;
  float* x_ = nullptr;         // [rows, width]: the residual stream
  float* h_ = nullptr;         // [rows, width]: normalised input, then the branch's output
  float* q_ = nullptr;         // [rows, heads * head_dim]
  float* k_ = nullptr;         // [rows, kv_heads * head_dim]
  float* v_ = nullptr;         // [rows, kv_heads * head_dim]
  float* attended_ = nullptr;  // [rows, heads * head_dim]
  float* gate_ = nullptr;      // [rows, ffn_width]
  float* up_ = nullptr;        // [rows, ffn_width]
  float* logits_ = nullptr;    // [logits_max, vocabulary]
  std::unique_ptr<LogitsReader> reader_;
  std::vector<uint32_t> highest_counts_;  // of the segments that want logits
  Rows rows_;
  std::unique_ptr<Batch> batch_;  // of rows_
};

}  // namespace cairn
