// The simplest decoder there is: a model, one context, memory of its own; no engine, no sharing, no
// batch. What it answers is what every stream must say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/api.h"
#include "engine/load.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"

namespace cairn {

class LoneDecoder {
 public:
  // Contexts of at most `context_length` tokens; without a maker of backends on the CPU's. CHECKs
  // that the file is a good one.
  LoneDecoder(const std::string& model_path, uint32_t context_length,
              const BackendMaker& make_backend = {});

  struct Answer {
    std::vector<uint32_t> tokens;  // those that become part of a session
    FinishReason finish_reason = FinishReason::kNone;
  };
  // What follows `context` until it holds `end_count` tokens, or the sampling says stop.
  Answer Decode(std::span<const uint32_t> context, const SamplingParams& sampling, uint64_t seed,
                size_t end_count);

  // K and V of `context`, block after block; the last one may be filled in part.
  std::vector<std::vector<std::byte>> Blocks(std::span<const uint32_t> context);

 private:
  // The logits after `context`, of which the first `computed` tokens are in place.
  std::span<const float> Compute(std::span<const uint32_t> context, size_t computed);
  std::string BytesOf(std::span<const uint32_t> tokens) const;
  // How many of `tokens` end before the first stop string; all of them when there is none.
  size_t CountBeforeStop(std::span<const uint32_t> tokens, const SamplingParams& sampling) const;

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
  Sampler sampler_;
  std::unique_ptr<Buffer> memory_;
  std::vector<std::byte*> blocks_;
};

}  // namespace cairn
