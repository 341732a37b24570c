#include "offload/copy_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {

Status QueuedCopy::Outcome() const {
  EventRef asked;
  for (const EventRef& layer : layers_) {
    if (layer != asked) RETURN_IF_ERROR(layer->Wait());
    asked = layer;
  }
  return ended_ == nullptr ? Status() : ended_->Wait();
}

double QueuedCopy::ArrivedShare() const {
  size_t arrived = 0;
  const auto has_come = [](const EventRef& event) { return event == nullptr || event->Passed(); };
  while (arrived < layers_.size() && has_come(layers_[arrived])) ++arrived;
  return layer_count_ == 0 ? 0 : static_cast<double>(arrived) / layer_count_;
}

Result<std::unique_ptr<CopyQueue>> CopyQueue::Create(Device& device, uint64_t bytes_per_second,
                                                     const Clock& clock) {
  ASSIGN_OR_RETURN(std::unique_ptr<Stream> to_device, device.NewStream(StreamUse::kCopy));
  ASSIGN_OR_RETURN(std::unique_ptr<Stream> to_host, device.NewStream(StreamUse::kCopy));
  return std::make_unique<CopyQueue>(std::move(to_device), std::move(to_host), bytes_per_second,
                                     clock, device.info().copy_batch_bytes);
}

CopyRef CopyQueue::Add(Way way, std::byte* to, const std::byte* from, size_t size_bytes,
                       const EventRef& after) {
  const Clock::Monotonic now = clock_.Now();
  if (!has_waiting()) due_ = std::max(due_, now);
  auto copy = std::make_shared<QueuedCopy>();
  copy->part_ = {to, from, size_bytes};
  copy->after_ = after;
  copy->ordered_ = now;
  LaneOf(way).waiting.push_back(copy);
  return copy;
}

CopyRef CopyQueue::AddByLayer(std::span<const CopyPart> blocks, uint32_t layer_count,
                              const EventRef& after) {
  CHECK(layer_count > 0 && !blocks.empty());
  const Clock::Monotonic now = clock_.Now();
  if (!has_waiting()) due_ = std::max(due_, now);
  auto copy = std::make_shared<QueuedCopy>();
  copy->after_ = after;
  copy->ordered_ = now;
  copy->layer_count_ = layer_count;
  copy->share_ = 1.0 / static_cast<double>(blocks.size());
  const uint32_t group_count = std::min(kLayerGroupsMax, layer_count);
  uint32_t begin = 0;
  for (uint32_t group = 0; group < group_count; ++group) {
    const uint32_t end = layer_count * (group + 1) / group_count;
    for (const CopyPart& block : blocks) {
      const size_t layer_bytes = block.size_bytes / layer_count;
      const size_t offset = begin * layer_bytes;
      copy->parts_.push_back({static_cast<std::byte*>(block.to) + offset,
                              static_cast<const std::byte*>(block.from) + offset,
                              (end - begin) * layer_bytes});
    }
    copy->group_ends_.push_back(end);
    begin = end;
  }
  LaneOf(Way::kToDevice).waiting.push_back(copy);  // what was ordered before goes first
  Advance();
  CHECK(copy->begun_ || bytes_per_second_ > 0);
  return copy;
}

void CopyQueue::Advance() {
  const Clock::Monotonic now = clock_.Now();
  Lane& to_device = LaneOf(Way::kToDevice);
  Lane& to_host = LaneOf(Way::kToHost);
  while (has_waiting() && now >= due_) {
    const bool is_impatient =
        !to_host.waiting.empty() && now - to_host.waiting.front()->ordered_ >= kPatience;
    BeginFirst(to_device.waiting.empty() || is_impatient ? to_host : to_device);
  }
  for (Lane& lane : lanes_) {
    if (!lane.batch.empty()) BeginBatch(lane);
    if (!lane.parts.empty()) BeginParts(lane);
  }
}

// The first copy that waits, or the next part of it, is due.
void CopyQueue::BeginFirst(Lane& lane) {
  QueuedCopy& copy = *lane.waiting.front();
  const bool by_layer = copy.layer_count_ > 0;
  const CopyPart part = by_layer ? copy.parts_[copy.begun_parts_] : copy.part_;
  const std::chrono::duration<double> time(LimitedSeconds(part.size_bytes));
  due_ += std::chrono::duration_cast<Clock::Monotonic::duration>(time);
  if (by_layer) {
    if (!lane.batch.empty()) BeginBatch(lane);
    lane.parts.push_back(part);
    const size_t block_count = copy.parts_.size() / copy.group_ends_.size();
    if (++copy.begun_parts_ % block_count == 0) BeginParts(lane);
    return;
  }
  lane.batch.push_back(std::move(lane.waiting.front()));
  lane.waiting.pop_front();
  lane.batch_bytes += part.size_bytes;
  if (lane.batch_bytes >= batch_bytes_) BeginBatch(lane);
}

// Parts of one group, and perhaps its last ones.
void CopyQueue::BeginParts(Lane& lane) {
  const CopyRef copy = lane.waiting.front();
  if (copy->began_ == nullptr) {
    lane.stream->Wait(copy->after_);
    copy->began_ = lane.stream->Record();
  }
  lane.stream->CopyBatch(lane.parts);
  lane.parts.clear();
  const size_t block_count = copy->parts_.size() / copy->group_ends_.size();
  if (copy->begun_parts_ % block_count > 0) return;
  const size_t group = copy->begun_parts_ / block_count - 1;
  copy->layers_.resize(copy->group_ends_[group], lane.stream->Record());
  if (copy->begun_parts_ < copy->parts_.size()) return;
  copy->ended_ = copy->layers_.back();
  copy->begun_ = true;
  begun_count_ += block_count;
  lane.waiting.pop_front();
}

EventRef CopyQueue::AwaitBegin(const QueuedCopy& copy, uint32_t layer) {
  CHECK(layer < copy.layer_count());
  Advance();
  while (!copy.has_begun(layer)) {
    clock_.SleepUntil(due_);
    Advance();
  }
  return copy.layer(layer);
}

void CopyQueue::BeginBatch(Lane& lane) {
  EventRef waited;
  parts_.clear();
  for (const CopyRef& copy : lane.batch) {
    if (copy->after_ != waited) lane.stream->Wait(copy->after_);
    waited = copy->after_;
    parts_.push_back(copy->part_);
  }
  const EventRef began = lane.stream->Record();
  lane.stream->CopyBatch(parts_);
  const EventRef ended = lane.stream->Record();
  for (const CopyRef& copy : lane.batch) {
    copy->began_ = began;
    copy->ended_ = ended;
    copy->share_ =
        static_cast<double>(copy->part_.size_bytes) / static_cast<double>(lane.batch_bytes);
    copy->begun_ = true;
  }
  begun_count_ += lane.batch.size();
  lane.batch.clear();
  lane.batch_bytes = 0;
}

bool CopyQueue::Cancel(const CopyRef& copy) {
  if (copy->layer_count_ > 0) return false;  // others may want it
  size_t count = 0;
  for (Lane& lane : lanes_) count += std::erase(lane.waiting, copy);
  return count > 0;
}

double CopyQueue::LimitedSeconds(size_t size_bytes) const {
  if (bytes_per_second_ == 0) return 0;
  return static_cast<double>(size_bytes) / static_cast<double>(bytes_per_second_);
}

Status CopyQueue::CopyToHostNow(std::byte* to, const std::byte* from, size_t size_bytes,
                                const EventRef& after) {
  Stream& stream = *LaneOf(Way::kToHost).stream;
  stream.Wait(after);
  stream.Copy(to, from, size_bytes);
  return stream.Synchronize();
}

}  // namespace cairn
