#include "tests/fakes/lone_decoder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/checkpoint.h"
#include "engine/vocabulary.h"
#include "kernels/backend.h"

namespace cairn {
namespace {

constexpr uint32_t kChunk = 64;  // rows of a pass

}  // namespace

LoneDecoder::LoneDecoder(const std::string& model_path, uint32_t context_length,
                         const BackendMaker& make_backend) {
  const Result<Checkpoint> checkpoint = Checkpoint::Open(model_path);
  CHECK(checkpoint.ok());
  const Result<Vocabulary> vocabulary = ReadVocabulary(checkpoint->file());
  CHECK(vocabulary.ok());
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*vocabulary);
  Result<Backend> backend = make_backend ? make_backend() : MakeCpuBackend({.thread_count = 1});
  CHECK(tokenizer.ok() && backend.ok());
  tokenizer_ = *std::move(tokenizer);
  Result<std::unique_ptr<Model>> model = Model::Create(
      *checkpoint, *std::move(backend),
      {.context_length = context_length, .rows_max = kChunk, .logits_max = 1}, nullptr);
  CHECK(model.ok());
  model_ = *std::move(model);
  const KvLayout& layout = model_->kv_layout();
  const size_t block_count = context_length / layout.block_tokens + 1;
  Result<std::unique_ptr<Buffer>> memory =
      model_->device().Allocate(block_count * layout.block_bytes());
  CHECK(memory.ok());
  memory_ = *std::move(memory);
  for (size_t i = 0; i < block_count; ++i) {
    blocks_.push_back(memory_->data() + i * layout.block_bytes());
  }
}

std::span<const float> LoneDecoder::Compute(std::span<const uint32_t> context, size_t computed) {
  std::span<const float> logits;
  while (computed < context.size()) {
    const size_t count = std::min<size_t>(kChunk, context.size() - computed);
    const BatchSegment segment = {.tokens = context.subspan(computed, count),
                                  .first_position = static_cast<uint32_t>(computed),
                                  .blocks = blocks_.data(),
                                  .want_logits = true};
    logits = model_->Forward({&segment, 1})->front().all;
    computed += count;
  }
  return logits;
}

LoneDecoder::Answer LoneDecoder::Decode(std::span<const uint32_t> context,
                                        const SamplingParams& sampling, uint64_t seed,
                                        size_t end_count) {
  std::vector<uint32_t> tokens(context.begin(), context.end());
  const auto output = [&] { return std::span(tokens).subspan(context.size()); };
  const auto finish = [&](size_t count, FinishReason reason) {
    return Answer{{output().begin(), output().begin() + count}, reason};
  };
  size_t computed = 0;
  while (tokens.size() < end_count) {
    const std::span<const float> logits = Compute(tokens, computed);
    computed = tokens.size();
    const TokenCounts counts(tokens);
    const auto sampled = sampler_.Sample(logits, sampling, seed, tokens.size(), &counts);
    CHECK(sampled.ok());
    const bool stops = std::ranges::count(sampling.stop_token_ids, sampled->id) > 0;
    if (stops || (!sampling.ignore_eos && tokenizer_->IsEnd(sampled->id))) {
      return finish(output().size(), FinishReason::kStop);
    }
    tokens.push_back(sampled->id);
    const size_t kept = CountBeforeStop(output(), sampling);
    if (kept < output().size()) return finish(kept, FinishReason::kStop);
  }
  return finish(output().size(), FinishReason::kLength);
}

std::string LoneDecoder::BytesOf(std::span<const uint32_t> tokens) const {
  std::string bytes;
  for (const uint32_t token : tokens) bytes += tokenizer_->TokenBytes(token);
  return bytes;
}

size_t LoneDecoder::CountBeforeStop(std::span<const uint32_t> tokens,
                                    const SamplingParams& sampling) const {
  const std::string bytes = BytesOf(tokens);
  size_t start = std::string::npos;
  for (const std::string& stop : sampling.stop) start = std::min(start, bytes.find(stop));
  size_t count = tokens.size();
  if (start == std::string::npos) return count;
  while (count > 0 && BytesOf(tokens.first(count)).size() > start) --count;
  return count;
}

std::vector<std::vector<std::byte>> LoneDecoder::Blocks(std::span<const uint32_t> context) {
  Compute(context, 0);
  const KvLayout& layout = model_->kv_layout();
  Stream& stream = model_->compute_stream();
  std::vector<std::vector<std::byte>> blocks;
  for (size_t begin = 0; begin < context.size(); begin += layout.block_tokens) {
    std::vector<std::byte>& block = blocks.emplace_back(layout.block_bytes());
    stream.Copy(block.data(), blocks_[begin / layout.block_tokens], block.size());
  }
  CHECK(stream.Synchronize().ok());
  return blocks;
}

}  // namespace cairn
