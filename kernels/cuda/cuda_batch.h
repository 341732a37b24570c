// A batch in the device's memory: its rows, its segments with their tables of blocks, and the work
// of attention that follows from them. It crosses once a pass, from page-locked memory, by one
// batch of copies; addresses stay the same from pass to pass, except that the list of attention's
// work moves when it outgrows its memory.
//
// A batch whose segments have one row each has room for more spans of attention than there are: a
// power of two of them, the rest of which are nothing. So it has few shapes, whatever the contexts
// are, and its operations can be repeated (GraphCache).
// Threads: those of its Ops.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace cairn::cuda {

class CudaBatch final : public Batch {
 public:
  static Result<std::unique_ptr<CudaBatch>> Create(Device& device, const BatchLimits& limits);

  const BatchRow* device_rows() const { return rows_.device<BatchRow>(); }
  const DeviceSegment* device_segments() const { return device_segments_.device<DeviceSegment>(); }

  // What attention has to do for the first `segment_count` segments. Device addresses.
  struct Work {
    const AttentionSpanItem* spans;
    const AttentionMergeItem* merges;
    const AttentionChunkItem* chunks;
    uint32_t span_count;
    uint32_t merge_count;
    uint32_t chunk_count;
    uint32_t partial_count;
  };
  // Planned once a pass for one shape of heads; from the second pass on by Set, so that an
  // operation need not.
  Result<Work> WorkOf(uint32_t segment_count, uint32_t group, uint32_t chunk_queries,
                      Stream& stream);

  // Of a batch that has been planned and whose operations can be repeated.
  struct RepeatedWork {
    uint32_t span_count;
    const void* plan;
  };
  std::optional<RepeatedWork> repeated_work() const;

 private:
  // The same bytes on the host and on the device.
  class Mirror {
   public:
    Status Reserve(Device& device, size_t size_bytes);
    template <class T>
    T* host() {
      return reinterpret_cast<T*>(host_->data());
    }
    template <class T>
    const T* device() const {
      return reinterpret_cast<const T*>(device_->data());
    }
    size_t size_bytes() const { return host_ == nullptr ? 0 : host_->size_bytes(); }
    // So many bytes, rounded up to what a kernel copies.
    CopyPart PartOf(size_t size_bytes);

   private:
    std::unique_ptr<Buffer> host_;
    std::unique_ptr<Buffer> device_;
  };
  struct Shape {
    uint32_t group;
    uint32_t chunk_queries;
    bool operator==(const Shape&) const = default;
  };

  CudaBatch(Device& device, const BatchLimits& limits) : device_(device), limits_(limits) {}
  void Send(Stream& stream) override;
  Status Arrange(Stream& stream);
  void ArrangeSegments();
  bool HasOneRowEach() const { return rows().size() == segments().size(); }
  Status ArrangePlan(Stream& stream);
  void SendParts(Stream& stream);
  Status WaitForCopies();

  Device& device_;
  const BatchLimits limits_;
  Mirror rows_;
  Mirror device_segments_;
  Mirror tables_;
  Mirror work_;
  std::vector<CopyPart> parts_;  // arranged, and to be sent
  EventRef copied_;              // the staging memory may be written again
  std::optional<Shape> shape_;
  bool is_planned_ = false;
  bool is_repeatable_ = false;  // there is room for a power of two of spans
  AttentionPlan plan_;
};

}  // namespace cairn::cuda
