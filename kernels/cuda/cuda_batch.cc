#include "kernels/cuda/cuda_batch.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/block_copies.h"
#include "kernels/cuda/cuda_stream.h"

namespace cairn::cuda {
namespace {

uint32_t BlocksSeen(const AttentionSegment& segment, uint32_t block_tokens) {
  return (segment.first_position + segment.row_count - 1) / block_tokens + 1;
}

constexpr size_t RoundUp(size_t size_bytes) {
  return (size_bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

template <class Item>
size_t BytesOf(const std::vector<Item>& items) {
  return items.size() * sizeof(Item);
}

// Items of the first `segment_count` segments.
template <class Item>
uint32_t CountOf(const std::vector<Item>& items, uint32_t segment_count) {
  const auto end = std::partition_point(
      items.begin(), items.end(), [&](const Item& item) { return item.segment < segment_count; });
  return static_cast<uint32_t>(end - items.begin());
}

}  // namespace

Status CudaBatch::Mirror::Reserve(Device& device, size_t size_bytes) {
  if (size_bytes <= this->size_bytes()) return Status();
  device_.reset();  // before the new ones are taken
  host_.reset();
  ASSIGN_OR_RETURN(device_, device.Allocate(RoundUp(size_bytes)));
  ASSIGN_OR_RETURN(host_, device.AllocateHost(RoundUp(size_bytes)));
  return Status();
}

CopyPart CudaBatch::Mirror::PartOf(size_t size_bytes) {
  return {device_->data(), host_->data(), RoundUp(size_bytes)};
}

Result<std::unique_ptr<CudaBatch>> CudaBatch::Create(Device& device, const BatchLimits& limits) {
  CHECK(limits.rows_max > 0 && limits.contexts_max > 0 && limits.context_blocks_max > 0);
  std::unique_ptr<CudaBatch> batch(new CudaBatch(device, limits));
  RETURN_IF_ERROR(batch->rows_.Reserve(device, limits.rows_max * sizeof(BatchRow)));
  RETURN_IF_ERROR(batch->device_segments_.Reserve(device, limits.rows_max * sizeof(DeviceSegment)));
  RETURN_IF_ERROR(batch->tables_.Reserve(
      device, size_t{limits.contexts_max} * limits.context_blocks_max * sizeof(std::byte*)));
  return batch;
}

// A copy that has begun reads the staging memory at its own time.
Status CudaBatch::WaitForCopies() {
  const EventRef copied = std::exchange(copied_, nullptr);
  return copied == nullptr ? Status() : copied->Wait();
}

// Whatever fails makes the stream a failed one, so that no operation takes the rows of an earlier
// batch for those of this one.
void CudaBatch::Send(Stream& stream) {
  CHECK(rows().size() <= limits_.rows_max && segments().size() <= limits_.rows_max);
  is_planned_ = false;
  const Status status = Arrange(stream);
  if (!status.ok()) static_cast<CudaStream&>(stream).Fail(status);
}

Status CudaBatch::Arrange(Stream& stream) {
  RETURN_IF_ERROR(WaitForCopies());
  std::copy(rows().begin(), rows().end(), rows_.host<BatchRow>());
  parts_ = {rows_.PartOf(rows().size_bytes())};
  ArrangeSegments();
  if (shape_.has_value()) RETURN_IF_ERROR(ArrangePlan(stream));
  SendParts(stream);
  return Status();
}

void CudaBatch::SendParts(Stream& stream) {
  stream.CopyBatch(parts_);
  parts_.clear();
  copied_ = stream.Record();
  if (stream.failed()) copied_ = nullptr;  // it is synchronized before the next batch
}

// Segments that share a table on the host share it on the device.
void CudaBatch::ArrangeSegments() {
  std::unordered_map<const void*, uint32_t> blocks_seen;  // of a table
  for (const AttentionSegment& segment : segments()) {
    uint32_t& seen = blocks_seen[segment.blocks];
    seen = std::max(seen, BlocksSeen(segment, limits_.block_tokens));
  }
  CHECK(blocks_seen.size() <= limits_.contexts_max);
  std::unordered_map<const void*, size_t> starts;
  const std::byte** const table = tables_.host<const std::byte*>();
  size_t used = 0;
  DeviceSegment* next = device_segments_.host<DeviceSegment>();
  for (const AttentionSegment& segment : segments()) {
    const auto [start, is_new] = starts.emplace(segment.blocks, used);
    if (is_new) {
      const uint32_t count = blocks_seen[segment.blocks];
      CHECK(count <= limits_.context_blocks_max);
      std::copy_n(segment.blocks, count, table + used);
      used += count;
    }
    *next++ = {.first_row = segment.first_row,
               .row_count = segment.row_count,
               .first_position = segment.first_position,
               .blocks = tables_.device<const std::byte*>() + start->second};
  }
  parts_.push_back(device_segments_.PartOf(segments().size() * sizeof(DeviceSegment)));
  parts_.push_back(tables_.PartOf(used * sizeof(std::byte*)));
}

Status CudaBatch::ArrangePlan(Stream& stream) {
  const AttentionRoom room = AttentionRoomOf(limits_, shape_->group, shape_->chunk_queries);
  PlanAttention(segments(), shape_->group, shape_->chunk_queries, room.partials, plan_);
  const size_t repeated_spans = std::bit_ceil(std::max(plan_.spans.size(), kRepeatedSpansMin));
  is_repeatable_ = HasOneRowEach() && !plan_.spans.empty() && repeated_spans <= room.repeated_spans;
  if (is_repeatable_) {
    plan_.spans.resize(repeated_spans,
                       {.segment = kNoSegment, .first_query = 0, .span = 0, .first_partial = 0});
  }
  const size_t size_bytes = BytesOf(plan_.spans) + BytesOf(plan_.merges) + BytesOf(plan_.chunks);
  if (size_bytes > work_.size_bytes()) {
    RETURN_IF_ERROR(stream.Synchronize());  // what runs may still read the old list
    RETURN_IF_ERROR(
        work_.Reserve(device_, std::max(size_bytes, std::min(2 * size_bytes, room.plan_bytes))));
  }
  if (size_bytes > 0) {
    auto* next = work_.host<std::byte>();
    const auto append = [&next](const auto& items) {
      next = std::copy_n(reinterpret_cast<const std::byte*>(items.data()), BytesOf(items), next);
    };
    append(plan_.merges);
    append(plan_.chunks);
    append(plan_.spans);
    parts_.push_back(work_.PartOf(size_bytes));
  }
  is_planned_ = true;
  return Status();
}

Result<CudaBatch::Work> CudaBatch::WorkOf(uint32_t segment_count, uint32_t group,
                                          uint32_t chunk_queries, Stream& stream) {
  CHECK(segment_count <= segments().size());
  const Shape shape = {group, chunk_queries};
  if (!is_planned_ || shape_ != shape) {
    RETURN_IF_ERROR(WaitForCopies());
    shape_ = shape;
    RETURN_IF_ERROR(ArrangePlan(stream));
    SendParts(stream);
  }
  if (work_.size_bytes() == 0) return Work{};
  const std::byte* const merges = work_.device<std::byte>();
  const std::byte* const chunks = merges + BytesOf(plan_.merges);
  const std::byte* const spans = chunks + BytesOf(plan_.chunks);
  const bool is_repeated = is_repeatable_ && segment_count == segments().size();
  const auto span_room = static_cast<uint32_t>(plan_.spans.size());
  return Work{.spans = reinterpret_cast<const AttentionSpanItem*>(spans),
              .merges = reinterpret_cast<const AttentionMergeItem*>(merges),
              .chunks = reinterpret_cast<const AttentionChunkItem*>(chunks),
              .span_count = is_repeated ? span_room : CountOf(plan_.spans, segment_count),
              .merge_count = CountOf(plan_.merges, segment_count),
              .chunk_count = CountOf(plan_.chunks, segment_count),
              .partial_count =
                  is_repeated ? span_room * std::min(group, kTileQueries) : plan_.partial_count};
}

std::optional<CudaBatch::RepeatedWork> CudaBatch::repeated_work() const {
  const bool is_possible = is_planned_ && is_repeatable_ && plan_.chunks.empty();
  if (!is_possible) return std::nullopt;
  return RepeatedWork{static_cast<uint32_t>(plan_.spans.size()), work_.device<std::byte>()};
}

}  // namespace cairn::cuda
