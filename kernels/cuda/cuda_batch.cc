#include "kernels/cuda/cuda_batch.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace cairn::cuda {
namespace {

uint32_t BlocksSeen(const AttentionSegment& segment, uint32_t block_tokens) {
  return (segment.first_position + segment.row_count - 1) / block_tokens + 1;
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
  ASSIGN_OR_RETURN(device_, device.Allocate(size_bytes));
  ASSIGN_OR_RETURN(host_, device.AllocateHost(size_bytes));
  return Status();
}

void CudaBatch::Mirror::Send(size_t size_bytes, Stream& stream) {
  if (size_bytes > 0) stream.Copy(device_->data(), host_->data(), size_bytes);
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

void CudaBatch::Send(Stream& stream) {
  CHECK(rows().size() <= limits_.rows_max && segments().size() <= limits_.rows_max);
  plan_status_ = WaitForCopies();
  if (!plan_status_.ok()) return;
  std::copy(rows().begin(), rows().end(), rows_.host<BatchRow>());
  rows_.Send(rows().size_bytes(), stream);
  SendSegments(stream);
  is_planned_ = false;
  if (shape_.has_value()) plan_status_ = SendPlan(stream);
  copied_ = stream.Record();
}

// Segments that share a table on the host share it on the device.
void CudaBatch::SendSegments(Stream& stream) {
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
  device_segments_.Send(segments().size() * sizeof(DeviceSegment), stream);
  tables_.Send(used * sizeof(std::byte*), stream);
}

Status CudaBatch::SendPlan(Stream& stream) {
  PlanAttention(segments(), shape_->group, shape_->chunk_queries, plan_);
  const size_t size_bytes = BytesOf(plan_.spans) + BytesOf(plan_.merges) + BytesOf(plan_.chunks);
  if (size_bytes > work_.size_bytes()) {
    RETURN_IF_ERROR(stream.Synchronize());  // what runs may still read the old list
    RETURN_IF_ERROR(work_.Reserve(device_, 2 * size_bytes));
  }
  if (size_bytes > 0) {
    auto* next = work_.host<std::byte>();
    const auto append = [&next](const auto& items) {
      next = std::copy_n(reinterpret_cast<const std::byte*>(items.data()), BytesOf(items), next);
    };
    append(plan_.spans);
    append(plan_.merges);
    append(plan_.chunks);
    work_.Send(size_bytes, stream);
  }
  is_planned_ = true;
  return Status();
}

Result<CudaBatch::Work> CudaBatch::WorkOf(uint32_t segment_count, uint32_t group,
                                          uint32_t chunk_queries, Stream& stream) {
  CHECK(segment_count <= segments().size());
  RETURN_IF_ERROR(plan_status_);
  const Shape shape = {group, chunk_queries};
  if (!is_planned_ || shape_ != shape) {
    RETURN_IF_ERROR(WaitForCopies());
    shape_ = shape;
    RETURN_IF_ERROR(SendPlan(stream));
    copied_ = stream.Record();
  }
  if (work_.size_bytes() == 0) return Work{};
  const std::byte* const spans = work_.device<std::byte>();
  const std::byte* const merges = spans + BytesOf(plan_.spans);
  const std::byte* const chunks = merges + BytesOf(plan_.merges);
  return Work{.spans = reinterpret_cast<const AttentionSpanItem*>(spans),
              .merges = reinterpret_cast<const AttentionMergeItem*>(merges),
              .chunks = reinterpret_cast<const AttentionChunkItem*>(chunks),
              .span_count = CountOf(plan_.spans, segment_count),
              .merge_count = CountOf(plan_.merges, segment_count),
              .chunk_count = CountOf(plan_.chunks, segment_count),
              .partial_count = plan_.partial_count};
}

}  // namespace cairn::cuda
