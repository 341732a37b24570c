// Operations that remember what they were asked for, so that a bench can ask for the same again: in
// a captured stream, a pass becomes one graph, which takes what its kernels take and nothing else.
// Threads: as kernels/ops.h says.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace cairn {

class RecordingOps final : public Ops {
 public:
  explicit RecordingOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  // Forgets what was recorded, and from now on records, or does not.
  void Record(bool wanted) {
    calls_.clear();
    is_recording_ = wanted;
  }
  // Everything recorded once more, with the batches as they are now.
  void PlayBack(Stream& stream) {
    for (const auto& call : calls_) call(*inner_, stream);
  }

  Result<std::unique_ptr<Weight>> Pack(const MatrixView& view) override {
    return inner_->Pack(view);
  }
  Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override {
    return inner_->NewBatch(limits);
  }
  void Embed(const EmbedArgs& args, Stream& stream) override {
    Call([args](Ops& ops, Stream& on) { ops.Embed(args, on); }, stream);
  }
  void RmsNorm(const RmsNormArgs& args, Stream& stream) override {
    Call([args](Ops& ops, Stream& on) { ops.RmsNorm(args, on); }, stream);
  }
  void MatMul(const MatMulArgs& args, Stream& stream) override {
    const std::vector<MatMulOutput> outputs(args.outputs.begin(), args.outputs.end());
    Call(
        [x = args.x, row_count = args.row_count, outputs](Ops& ops, Stream& on) {
          ops.MatMul({x, row_count, outputs}, on);
        },
        stream);
  }
  void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) override {
    Call([args](Ops& ops, Stream& on) { ops.RopeWriteKv(args, on); }, stream);
  }
  void PagedAttention(const PagedAttentionArgs& args, Stream& stream) override {
    Call([args](Ops& ops, Stream& on) { ops.PagedAttention(args, on); }, stream);
  }
  void SwiGlu(const SwiGluArgs& args, Stream& stream) override {
    Call([args](Ops& ops, Stream& on) { ops.SwiGlu(args, on); }, stream);
  }
  void TopLogits(const TopLogitsArgs& args, Stream& stream) override {
    Call([args](Ops& ops, Stream& on) { ops.TopLogits(args, on); }, stream);
  }
  uint32_t RowsToRepeat(uint32_t row_count) const override {
    return inner_->RowsToRepeat(row_count);
  }
  void Repeat(const Batch& batch, const std::function<void()>& operations,
              Stream& stream) override {
    if (is_recording_) return operations();
    inner_->Repeat(batch, operations, stream);
  }

 private:
  template <class Operation>
  void Call(const Operation& operation, Stream& stream) {
    operation(*inner_, stream);
    if (is_recording_) calls_.push_back(operation);
  }

  const std::unique_ptr<Ops> inner_;
  bool is_recording_ = false;
  std::vector<std::function<void(Ops&, Stream&)>> calls_;
};

}  // namespace cairn
