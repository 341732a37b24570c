// Operations that another Ops does: what a test wants otherwise, it overrides. Nothing is repeated
// (Ops::Repeat) unless it overrides that too: each operation is seen each time.
#pragma once

#include <memory>
#include <utility>

#include "kernels/ops.h"

namespace cairn {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}

  Result<std::unique_ptr<Weight>> Pack(const MatrixView& view) override {
    return inner_->Pack(view);
  }
  Result<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override {
    return inner_->NewBatch(limits);
  }
  uint64_t ScratchBytesMax(const PassLimits& limits) const override {
    return inner_->ScratchBytesMax(limits);
  }
  void Embed(const EmbedArgs& args, Stream& stream) override { inner_->Embed(args, stream); }
  void RmsNorm(const RmsNormArgs& args, Stream& stream) override { inner_->RmsNorm(args, stream); }
  void MatMul(const MatMulArgs& args, Stream& stream) override { inner_->MatMul(args, stream); }
  void RopeWriteKv(const RopeWriteKvArgs& args, Stream& stream) override {
    inner_->RopeWriteKv(args, stream);
  }
  void PagedAttention(const PagedAttentionArgs& args, Stream& stream) override {
    inner_->PagedAttention(args, stream);
  }
  void SwiGlu(const SwiGluArgs& args, Stream& stream) override { inner_->SwiGlu(args, stream); }
  void TopLogits(const TopLogitsArgs& args, Stream& stream) override {
    inner_->TopLogits(args, stream);
  }

 protected:
  Ops& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Ops> inner_;
};

}  // namespace cairn
