// How the next token is chosen, as a request or a session states it: an unset field takes the
// session's value, else the default named here (the comments of proto/cairn/v1/common.proto).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace cairn {

struct SamplingParams {
  std::optional<float> temperature;         // 0 is greedy; default 1; [0, 2]
  std::optional<float> top_p;               // (0, 1]; default 1
  std::optional<uint32_t> top_k;            // 0 is off; default 0
  std::optional<float> min_p;               // [0, 1]; default 0
  std::optional<float> repetition_penalty;  // > 0; default 1
  std::optional<float> presence_penalty;    // [-2, 2]; default 0
  std::optional<float> frequency_penalty;   // [-2, 2]; default 0
  std::optional<uint64_t> seed;             // default: drawn once for the session or the request
  std::vector<std::string> stop;         // at most 16, each 1..256 bytes; never part of the output
  std::vector<uint32_t> stop_token_ids;  // at most 64
  bool ignore_eos = false;
  std::map<uint32_t, float> logit_bias;  // at most 1024, each in [-100, 100]
  std::optional<uint32_t> logprobs;      // top alternatives a token, 0..20; absent: none

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// kInvalidArgument naming the field (`prefix` + "temperature") when a value is out of its bounds,
// not a number, or a token id is not below `vocabulary_size`.
Status ValidateSampling(const SamplingParams& params, uint32_t vocabulary_size,
                        const std::string& prefix);

// `over` where it sets a field, else `base`. Lists and maps count as set when they are not empty,
// ignore_eos when it is true.
SamplingParams Overlay(const SamplingParams& base, const SamplingParams& over);

}  // namespace cairn
