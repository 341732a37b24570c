#include "engine/logits_reader.h"

#include <algorithm>

namespace cairn {

Result<std::unique_ptr<LogitsReader>> LogitsReader::Create(Device& device, uint32_t rows_max,
                                                           uint32_t width) {
  std::unique_ptr<LogitsReader> reader(new LogitsReader(width));
  if (device.info().host_addressable) return reader;
  ASSIGN_OR_RETURN(reader->host_logits_,
                   device.AllocateHost(size_t{rows_max} * width * sizeof(float)));
  const size_t ranked_bytes = size_t{rows_max} * kTopLogitsMax * sizeof(RankedLogit);
  ASSIGN_OR_RETURN(reader->ranked_, device.Allocate(ranked_bytes));
  ASSIGN_OR_RETURN(reader->host_ranked_, device.AllocateHost(ranked_bytes));
  return reader;
}

void LogitsReader::Fetch(const float* logits, std::span<const uint32_t> highest_counts, Ops& ops,
                         Stream& stream) {
  rows_.clear();
  if (host_logits_ == nullptr) {
    for (size_t row = 0; row < highest_counts.size(); ++row) {
      rows_.push_back({.all = {logits + row * width_, width_}, .highest = {}});
    }
    return;
  }
  auto* const host = reinterpret_cast<float*>(host_logits_->data());
  const auto* const host_ranked = reinterpret_cast<const RankedLogit*>(host_ranked_->data());
  uint32_t ranked_count = 0;
  for (const uint32_t count : highest_counts) {
    if (count <= kTopLogitsMax) ranked_count = std::max(ranked_count, count);
  }
  parts_.clear();
  for (size_t row = 0; row < highest_counts.size(); ++row) {
    if (highest_counts[row] > 0 && highest_counts[row] <= kTopLogitsMax) {
      rows_.push_back({.all = {}, .highest = {host_ranked + row * ranked_count, ranked_count}});
    } else {
      rows_.push_back({.all = {host + row * width_, width_}, .highest = {}});
      parts_.push_back({host + row * width_, logits + row * width_, width_ * sizeof(float)});
    }
  }
  if (ranked_count > 0) {
    ops.TopLogits({.logits = logits,
                   .row_count = static_cast<uint32_t>(highest_counts.size()),
                   .width = width_,
                   .count = ranked_count,
                   .out = reinterpret_cast<RankedLogit*>(ranked_->data())},
                  stream);
    parts_.push_back({host_ranked_->data(), ranked_->data(),
                      highest_counts.size() * ranked_count * sizeof(RankedLogit)});
  }
  stream.CopyBatch(parts_);
}

}  // namespace cairn
