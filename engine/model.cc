#include "engine/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/rope.h"

namespace cairn {
namespace {

// Every part of a buffer starts on a cache line.
constexpr size_t PaddedCount(size_t float_count) {
  constexpr size_t kLineFloats = 64 / sizeof(float);
  return (float_count + kLineFloats - 1) / kLineFloats * kLineFloats;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Create(const Checkpoint& checkpoint, Backend backend,
                                             const ModelLimits& limits,
                                             void (*progress)(double share)) {
  CHECK(limits.context_length > 0 && limits.rows_max > 0 && limits.logits_max > 0);
  std::unique_ptr<Model> model(new Model(checkpoint, std::move(backend), limits));
  ASSIGN_OR_RETURN(model->stream_, model->device().NewStream(StreamUse::kCompute));
  RETURN_IF_ERROR(model->PackWeights(checkpoint, progress));
  RETURN_IF_ERROR(model->SendConstants(checkpoint));
  RETURN_IF_ERROR(model->AllocateActivations());
  ASSIGN_OR_RETURN(model->batch_, model->backend_.ops->NewBatch(model->batch_limits()));
  return model;
}

BatchLimits Model::batch_limits() const {
  const uint32_t block_tokens = limits_.block_tokens;
  return {.rows_max = limits_.rows_max,
          .contexts_max = limits_.logits_max,
          .context_blocks_max = (limits_.context_length + block_tokens - 1) / block_tokens,
          .block_tokens = block_tokens};
}

uint64_t Model::scratch_bytes_max() const {
  const uint32_t query_width = config_.head_count * config_.head_dim;
  const uint32_t widest =
      std::max({config_.vocabulary_size, config_.ffn_width, query_width, config_.width});
  return backend_.ops->ScratchBytesMax(
      {.batch = batch_limits(),
       .logits_max = limits_.logits_max,
       .vocabulary_size = config_.vocabulary_size,
       .cols_max = std::max({config_.width, query_width, config_.ffn_width}),
       .matrix_max = uint64_t{widest} * config_.width,
       .head_count = config_.head_count,
       .kv_head_count = config_.kv_head_count,
       .head_dim = config_.head_dim});
}

Model::Model(const Checkpoint& checkpoint, Backend backend, const ModelLimits& limits)
    : config_(checkpoint.config()), limits_(limits), backend_(std::move(backend)) {
  layout_ = {.layer_count = config_.layer_count,
             .kv_head_count = config_.kv_head_count,
             .head_dim = config_.head_dim,
             .block_tokens = limits.block_tokens,
             .type = KvType::kF16,
             .arithmetic = backend_.arithmetic};
}

Status Model::PackWeights(const Checkpoint& checkpoint, void (*progress)(double share)) {
  const auto pack = [&](const MatrixView& view, std::unique_ptr<Weight>& weight) -> Status {
    ASSIGN_OR_RETURN(weight, backend_.ops->Pack(view));
    weight_bytes_ += weight->size_bytes();
    checkpoint.file().ReleasePages(view.bytes);  // the weights are resident once, not twice
    return Status();
  };
  RETURN_IF_ERROR(pack(checkpoint.embedding(), embedding_));
  if (!checkpoint.tied_output()) RETURN_IF_ERROR(pack(checkpoint.output(), untied_output_));
  for (const LayerWeights& source : checkpoint.layers()) {
    Layer& layer = layers_.emplace_back();
    RETURN_IF_ERROR(pack(source.q, layer.q));
    RETURN_IF_ERROR(pack(source.k, layer.k));
    RETURN_IF_ERROR(pack(source.v, layer.v));
    RETURN_IF_ERROR(pack(source.o, layer.o));
    RETURN_IF_ERROR(pack(source.gate, layer.gate));
    RETURN_IF_ERROR(pack(source.up, layer.up));
    RETURN_IF_ERROR(pack(source.down, layer.down));
    if (progress != nullptr) progress(double(layers_.size()) / config_.layer_count);
  }
  return Status();
}

// The rotation table and the gains of the norms.
Status Model::SendConstants(const Checkpoint& checkpoint) {
  const std::vector<float> cos_sin = RopeCosSin(config_, limits_.context_length,
                                                ContextExtension(config_, limits_.context_length));
  std::vector<std::pair<const float**, const std::vector<float>*>> parts = {
      {&cos_sin_, &cos_sin}, {&output_norm_, &checkpoint.output_norm()}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    parts.emplace_back(&layers_[i].attn_norm, &checkpoint.layers()[i].attn_norm);
    parts.emplace_back(&layers_[i].ffn_norm, &checkpoint.layers()[i].ffn_norm);
  }
  size_t total = 0;
  for (const auto& [pointer, values] : parts) total += PaddedCount(values->size());
  ASSIGN_OR_RETURN(constants_, device().Allocate(total * sizeof(float)));
  float* next = reinterpret_cast<float*>(constants_->data());
  for (const auto& [pointer, values] : parts) {
    stream_->Copy(next, values->data(), values->size() * sizeof(float));
    *pointer = next;
    next += PaddedCount(values->size());
  }
  return stream_->Synchronize();
}

Status Model::AllocateActivations() {
  const size_t rows = limits_.rows_max;
  const size_t query_width = size_t{config_.head_count} * config_.head_dim;
  const size_t kv_width = size_t{config_.kv_head_count} * config_.head_dim;
  const std::array<std::pair<float**, size_t>, 9> parts = {{
      {&x_, rows * config_.width},
      {&h_, rows * config_.width},
      {&q_, rows * query_width},
      {&k_, rows * kv_width},
      {&v_, rows * kv_width},
      {&attended_, rows * query_width},
      {&gate_, rows * config_.ffn_width},
      {&up_, rows * config_.ffn_width},
      {&logits_, size_t{limits_.logits_max} * config_.vocabulary_size},
  }};
  size_t total = 0;
  for (const auto& [pointer, count] : parts) total += PaddedCount(count);
  ASSIGN_OR_RETURN(activations_, device().Allocate(total * sizeof(float)));
  float* next = reinterpret_cast<float*>(activations_->data());
  for (const auto& [pointer, count] : parts) {
    *pointer = next;
    next += PaddedCount(count);
  }
  ASSIGN_OR_RETURN(reader_,
                   LogitsReader::Create(device(), limits_.logits_max, config_.vocabulary_size));
  return Status();
}

// Rows [begin, end) of the segment become rows of the batch. Attention reads what every row of the
// layer has written, so the order of rows is free.
void Model::PlaceRows(const BatchSegment& segment, size_t begin, size_t end) {
  if (begin == end) return;
  const uint32_t first_position = segment.first_position + static_cast<uint32_t>(begin);
  rows_.segments.push_back({.first_row = rows_.count(),
                            .row_count = static_cast<uint32_t>(end - begin),
                            .first_position = first_position,
                            .blocks = segment.blocks});
  for (size_t i = begin; i < end; ++i) {
    const uint32_t position = segment.first_position + static_cast<uint32_t>(i);
    CHECK(position < limits_.context_length);
    std::byte* block = segment.write_kv ? segment.blocks[position / layout_.block_tokens] : nullptr;
    rows_.rows.push_back({.token = segment.tokens[i], .position = position, .block = block});
  }
}

void Model::Arrange(std::span<const BatchSegment> segments) {
  rows_.rows.clear();
  rows_.segments.clear();
  for (const BatchSegment& segment : segments) {
    CHECK(!segment.tokens.empty());
    if (segment.want_logits) PlaceRows(segment, segment.tokens.size() - 1, segment.tokens.size());
  }
  rows_.logits_count = rows_.count();
  rows_.logits_segment_count = static_cast<uint32_t>(rows_.segments.size());
  for (const BatchSegment& segment : segments) {
    PlaceRows(segment, 0, segment.tokens.size() - (segment.want_logits ? 1 : 0));
  }
  CHECK(rows_.count() <= limits_.rows_max && rows_.logits_count <= limits_.logits_max);
  rows_.is_decode = rows_.count() > 0 && rows_.logits_count == rows_.count();
  if (rows_.is_decode) FillUp(segments);
  batch_->Set(rows_.rows, rows_.segments, *stream_);
}

// Rows that only make the batch as large as the backend would have it: they look at one position of
// a context that is there, write nothing, and nobody looks at their logits.
void Model::FillUp(std::span<const BatchSegment> segments) {
  const uint32_t wanted = backend_.ops->RowsToRepeat(rows_.count());
  const uint32_t row_count = std::min({wanted, limits_.rows_max, limits_.logits_max});
  while (rows_.count() < row_count) {
    rows_.segments.push_back({.first_row = rows_.count(),
                              .row_count = 1,
                              .first_position = 0,
                              .blocks = segments.front().blocks});
    rows_.rows.push_back({.token = rows_.rows.front().token, .position = 0, .block = nullptr});
  }
  rows_.logits_count = rows_.count();
  rows_.logits_segment_count = rows_.count();
}

Result<std::span<const RowLogits>> Model::Forward(std::span<const BatchSegment> segments,
                                                  const LayerArrivals& arrivals) {
  Arrange(segments);
  if (rows_.is_decode && !arrivals) {
    backend_.ops->Repeat(
        *batch_, [this] { RunLayers({}); }, *stream_);
  } else {
    RunLayers(arrivals);
  }
  return TakeLogits(segments);
}

void Model::RunLayers(const LayerArrivals& arrivals) {
  Ops& ops = *backend_.ops;
  ops.Embed({.table = embedding_.get(), .batch = batch_.get(), .out = x_}, *stream_);
  const float* delta = nullptr;  // what the layer before adds to the residual stream
  uint32_t row_count = rows_.count();
  for (uint32_t index = 0; index < config_.layer_count; ++index) {
    const Layer& layer = layers_[index];
    Normalize(delta, layer.attn_norm, row_count);
    // Of the last layer only K and V matter, except to the rows that want logits: they are first.
    const bool last = index + 1 == config_.layer_count;
    const uint32_t rows_after = last ? rows_.logits_count : row_count;
    Project(layer, index, row_count);
    if (arrivals) stream_->Wait(arrivals(index));
    row_count = rows_after;
    if (row_count == 0) break;
    Attend(layer, index, row_count);
    Normalize(h_, layer.ffn_norm, row_count);
    FeedForward(layer, row_count);
    delta = h_;
  }
  if (rows_.logits_count > 0) {
    Normalize(h_, output_norm_, rows_.logits_count);
    const MatMulOutput output = {untied_output_ ? untied_output_.get() : embedding_.get(), logits_};
    ops.MatMul({.x = h_, .row_count = rows_.logits_count, .outputs = {&output, 1}}, *stream_);
  }
}

Result<std::span<const RowLogits>> Model::TakeLogits(std::span<const BatchSegment> segments) {
  highest_counts_.clear();
  for (const BatchSegment& segment : segments) {
    if (segment.want_logits) highest_counts_.push_back(segment.highest_count);
  }
  reader_->Fetch(logits_, highest_counts_, *backend_.ops, *stream_);
  RETURN_IF_ERROR(stream_->Synchronize());
  return reader_->rows();
}

// Adds delta to x_, unless it is null, and puts the normalised rows into h_.
void Model::Normalize(const float* delta, const float* gain, uint32_t row_count) {
  backend_.ops->RmsNorm({.x = x_,
                         .delta = delta,
                         .gain = gain,
                         .out = h_,
                         .row_count = row_count,
                         .width = config_.width,
                         .epsilon = config_.rms_epsilon},
                        *stream_);
}

// h_: normalised input. Leaves the queries in q_, and K and V of the layer in the rows' blocks.
void Model::Project(const Layer& layer, uint32_t index, uint32_t row_count) {
  Ops& ops = *backend_.ops;
  // A third of what int8 activations would cost in accuracy arises in V, the smallest of the
  // products (docs/ACCURACY.md).
  const std::array<MatMulOutput, 3> qkv = {
      {{layer.q.get(), q_}, {layer.k.get(), k_}, {.weight = layer.v.get(), .y = v_, .fine = true}}};
  ops.MatMul({.x = h_, .row_count = row_count, .outputs = qkv}, *stream_);
  ops.RopeWriteKv({.q = q_,
                   .k = k_,
                   .v = v_,
                   .cos_sin = cos_sin_,
                   .batch = batch_.get(),
                   .layout = &layout_,
                   .layer = index,
                   .head_count = config_.head_count,
                   .rotary_dim = config_.rope_dim,
                   .q_scale = static_cast<float>(1.0 / std::sqrt(double(config_.head_dim)))},
                  *stream_);
}

// h_ out: what attention adds to the first `row_count` rows, which go on.
void Model::Attend(const Layer& layer, uint32_t index, uint32_t row_count) {
  Ops& ops = *backend_.ops;
  const bool last = index + 1 == config_.layer_count;
  const auto segment_count = static_cast<uint32_t>(rows_.segments.size());
  ops.PagedAttention({.q = q_,
                      .out = attended_,
                      .batch = batch_.get(),
                      .segment_count = last ? rows_.logits_segment_count : segment_count,
                      .layout = &layout_,
                      .layer = index,
                      .head_count = config_.head_count},
                     *stream_);
  const MatMulOutput projection = {layer.o.get(), h_};
  ops.MatMul({.x = attended_, .row_count = row_count, .outputs = {&projection, 1}}, *stream_);
}

// h_ in: normalised input. h_ out: what the feed-forward network adds.
void Model::FeedForward(const Layer& layer, uint32_t row_count) {
  Ops& ops = *backend_.ops;
  const std::array<MatMulOutput, 2> gate_up = {{{layer.gate.get(), gate_}, {layer.up.get(), up_}}};
  ops.MatMul({.x = h_, .row_count = row_count, .outputs = gate_up}, *stream_);
  ops.SwiGlu(
      {.gate = gate_, .up = up_, .out = gate_, .row_count = row_count, .width = config_.ffn_width},
      *stream_);
  const MatMulOutput down = {layer.down.get(), h_};
  ops.MatMul({.x = gate_, .row_count = row_count, .outputs = {&down, 1}}, *stream_);
}

}  // namespace cairn
