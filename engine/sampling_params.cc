#include "engine/sampling_params.h"

#include <charconv>
#include <limits>
#include <string>
#include <utility>

namespace cairn {
namespace {

constexpr size_t kStopCountMax = 16;
constexpr size_t kStopBytesMax = 256;
constexpr size_t kStopTokenCountMax = 64;
constexpr size_t kLogitBiasCountMax = 1024;
constexpr uint32_t kLogprobsMax = 20;

std::string Text(float number) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  return std::string(buffer, end);
}

// Bounds are written so that a NaN, for which every comparison is false, is outside them.
bool IsWithin(float value, float low, float high) { return value >= low && value <= high; }

Status ValidateWithin(const std::optional<float>& value, float low, float high,
                      const std::string& field) {
  if (!value || IsWithin(*value, low, high)) return Status();
  return InvalidField(field,
                      "must be in [" + Text(low) + ", " + Text(high) + "], is " + Text(*value));
}

Status ValidateCount(size_t count, size_t count_max, const std::string& field) {
  if (count <= count_max) return Status();
  return InvalidField(field, "must have at most " + std::to_string(count_max) + " entries, has " +
                                 std::to_string(count));
}

Status ValidateTokenId(uint32_t id, uint32_t vocabulary_size, const std::string& field) {
  if (id < vocabulary_size) return Status();
  return InvalidField(field, "must be a token id below the vocabulary size " +
                                 std::to_string(vocabulary_size) + ", is " + std::to_string(id));
}

Status ValidateNumbers(const SamplingParams& params, const std::string& prefix) {
  RETURN_IF_ERROR(ValidateWithin(params.temperature, 0, 2, prefix + "temperature"));
  if (params.top_p && !(*params.top_p > 0 && *params.top_p <= 1)) {
    return InvalidField(prefix + "top_p", "must be in (0, 1], is " + Text(*params.top_p));
  }
  RETURN_IF_ERROR(ValidateWithin(params.min_p, 0, 1, prefix + "min_p"));
  if (params.repetition_penalty &&
      !(*params.repetition_penalty > 0 &&
        *params.repetition_penalty <= std::numeric_limits<float>::max())) {
    return InvalidField(prefix + "repetition_penalty",
                        "must be above 0 and finite, is " + Text(*params.repetition_penalty));
  }
  RETURN_IF_ERROR(ValidateWithin(params.presence_penalty, -2, 2, prefix + "presence_penalty"));
  RETURN_IF_ERROR(ValidateWithin(params.frequency_penalty, -2, 2, prefix + "frequency_penalty"));
  if (params.logprobs && *params.logprobs > kLogprobsMax) {
    return InvalidField(prefix + "logprobs", "must be at most " + std::to_string(kLogprobsMax) +
                                                 ", is " + std::to_string(*params.logprobs));
  }
  return Status();
}

Status ValidateStops(const SamplingParams& params, uint32_t vocabulary_size,
                     const std::string& prefix) {
  RETURN_IF_ERROR(ValidateCount(params.stop.size(), kStopCountMax, prefix + "stop"));
  for (size_t i = 0; i < params.stop.size(); ++i) {
    const size_t size = params.stop[i].size();
    if (size >= 1 && size <= kStopBytesMax) continue;
    return InvalidField(
        prefix + "stop[" + std::to_string(i) + "]",
        "must have 1 to " + std::to_string(kStopBytesMax) + " bytes, has " + std::to_string(size));
  }
  RETURN_IF_ERROR(
      ValidateCount(params.stop_token_ids.size(), kStopTokenCountMax, prefix + "stop_token_ids"));
  for (size_t i = 0; i < params.stop_token_ids.size(); ++i) {
    RETURN_IF_ERROR(ValidateTokenId(params.stop_token_ids[i], vocabulary_size,
                                    prefix + "stop_token_ids[" + std::to_string(i) + "]"));
  }
  return Status();
}

Status ValidateLogitBias(const SamplingParams& params, uint32_t vocabulary_size,
                         const std::string& prefix) {
  RETURN_IF_ERROR(
      ValidateCount(params.logit_bias.size(), kLogitBiasCountMax, prefix + "logit_bias"));
  for (const auto& [id, bias] : params.logit_bias) {
    const std::string field = prefix + "logit_bias[" + std::to_string(id) + "]";
    RETURN_IF_ERROR(ValidateTokenId(id, vocabulary_size, field));
    RETURN_IF_ERROR(ValidateWithin(bias, -100, 100, field));
  }
  return Status();
}

template <class T>
void OverlayValue(std::optional<T>& base, const std::optional<T>& over) {
  if (over) base = over;
}

template <class Container>
void OverlayEntries(Container& base, const Container& over) {
  if (!over.empty()) base = over;
}

}  // namespace

Status ValidateSampling(const SamplingParams& params, uint32_t vocabulary_size,
                        const std::string& prefix) {
  RETURN_IF_ERROR(ValidateNumbers(params, prefix));
  RETURN_IF_ERROR(ValidateStops(params, vocabulary_size, prefix));
  return ValidateLogitBias(params, vocabulary_size, prefix);
}

SamplingParams Overlay(const SamplingParams& base, const SamplingParams& over) {
  SamplingParams params = base;
  OverlayValue(params.temperature, over.temperature);
  OverlayValue(params.top_p, over.top_p);
  OverlayValue(params.top_k, over.top_k);
  OverlayValue(params.min_p, over.min_p);
  OverlayValue(params.repetition_penalty, over.repetition_penalty);
  OverlayValue(params.presence_penalty, over.presence_penalty);
  OverlayValue(params.frequency_penalty, over.frequency_penalty);
  OverlayValue(params.seed, over.seed);
  OverlayEntries(params.stop, over.stop);
  OverlayEntries(params.stop_token_ids, over.stop_token_ids);
  if (over.ignore_eos) params.ignore_eos = true;
  OverlayEntries(params.logit_bias, over.logit_bias);
  OverlayValue(params.logprobs, over.logprobs);
  return params;
}

}  // namespace cairn
