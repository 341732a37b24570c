// Two decoders on the CUDA backend: one repeats steps that were recorded, the other puts each
// operation on the stream. Whatever one says, the other has to say, byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model.h"
#include "tests/cuda_machine.h"
#include "tests/engine_harness.h"
#include "tests/fakes/forwarding_ops.h"

namespace cairn {

// Contexts that grow by the likeliest token.
class CudaDecoder {
 public:
  static constexpr uint32_t kContextMax = 300;
  static constexpr uint32_t kContexts = 4;

  CudaDecoder(const std::string& path, bool is_eager) {
    const Result<Checkpoint> checkpoint = Checkpoint::Open(path);
    Backend backend = *MakeCudaTestBackend(ComputeMode::kExact);
    if (is_eager) backend.ops = std::make_unique<ForwardingOps>(std::move(backend.ops));
    model_ = *Model::Create(
        *checkpoint, std::move(backend),
        {.context_length = kContextMax, .rows_max = 256, .logits_max = kContexts}, nullptr);
    const size_t block_bytes = model_->kv_layout().block_bytes();
    const uint32_t block_count = (kContextMax + 15) / 16;
    memory_ = *model_->device().Allocate(kContexts * block_count * block_bytes);
    for (uint32_t i = 0; i < kContexts * block_count; ++i) {
      blocks_[i / block_count].push_back(memory_->data() + i * block_bytes);
    }
  }

  void Join(uint32_t context, const std::vector<uint32_t>& tokens) {
    tokens_[context] = tokens;
    const BatchSegment segment = {.tokens = std::span(tokens).first(tokens.size() - 1),
                                  .blocks = blocks_[context].data()};
    EXPECT_TRUE(model_->Forward({&segment, 1}).ok());
  }

  // The logits of one step of these contexts.
  std::vector<float> Step(const std::vector<uint32_t>& contexts) {
    std::vector<BatchSegment> segments;
    for (const uint32_t context : contexts) {
      const std::vector<uint32_t>& tokens = tokens_[context];
      segments.push_back({.tokens = std::span(tokens).last(1),
                          .first_position = static_cast<uint32_t>(tokens.size() - 1),
                          .blocks = blocks_[context].data(),
                          .want_logits = true});
    }
    const Result<std::span<const RowLogits>> rows = model_->Forward(segments);
    EXPECT_TRUE(rows.ok()) << rows.status().ToString();
    std::vector<float> logits;
    for (size_t i = 0; i < contexts.size(); ++i) {
      const std::span<const float> row = (*rows)[i].all;
      logits.insert(logits.end(), row.begin(), row.end());
      const auto likeliest = std::ranges::max_element(row) - row.begin();
      tokens_[contexts[i]].push_back(static_cast<uint32_t>(likeliest));
    }
    return logits;
  }

  std::vector<std::byte> AllBlocks() {
    std::vector<std::byte> bytes(memory_->size_bytes());
    model_->compute_stream().Copy(bytes.data(), memory_->data(), bytes.size());
    EXPECT_TRUE(model_->compute_stream().Synchronize().ok());
    return bytes;
  }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<Buffer> memory_;
  std::map<uint32_t, std::vector<std::byte*>> blocks_;
  std::map<uint32_t, std::vector<uint32_t>> tokens_;
};

class CudaDecoders {
 public:
  CudaDecoders() {
    TinyModelOptions options;
    options.layers = 2;
    WriteTinyModel(path_, options);
    repeating_ = std::make_unique<CudaDecoder>(path_, false);
    eager_ = std::make_unique<CudaDecoder>(path_, true);
  }

  void Join(uint32_t context, size_t token_count) {
    for (CudaDecoder* decoder : {repeating_.get(), eager_.get()}) {
      decoder->Join(context, RandomTokens(context, token_count));
    }
  }
  // One step of both. `between`: when the repeating one has done it.
  void Step(
      const std::vector<uint32_t>& contexts, const std::function<void()>& between = [] {}) {
    const std::vector<float> logits = repeating_->Step(contexts);
    between();
    const std::vector<float> expected = eager_->Step(contexts);
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
        << contexts.size() << " contexts";
  }
  void ExpectEqualBlocks() { EXPECT_EQ(repeating_->AllBlocks(), eager_->AllBlocks()); }

 private:
  const ScratchFolder scratch_;
  const std::string path_ = scratch_.File("tiny.gguf");
  std::unique_ptr<CudaDecoder> repeating_, eager_;
};

}  // namespace cairn
