// The slots of one tier: equal places for one block each, in one buffer, the list of those that are
// free, and whose copies lie in the others. The slot that was given back last is taken first, since
// it is the likeliest to be in a cache.
//
// Slots are not cleared: one that was never taken is zero from its allocation, and a used one keeps
// the bytes of its last block, which are finite numbers of KvLayout::type. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "kernels/device.h"

namespace cairn {

class SlotPool {
 public:
  static constexpr size_t kSlotAlignment = 64;  // bytes; a cache line, and any vector register

  // Bytes from one slot to the next.
  static constexpr size_t StrideBytes(size_t block_bytes) {
    return (block_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  }

  // `buffer` has capacity * StrideBytes(block_bytes) bytes, all of them zero.
  SlotPool(std::unique_ptr<Buffer> buffer, uint32_t capacity, size_t block_bytes)
      : buffer_(std::move(buffer)),
        stride_bytes_(StrideBytes(block_bytes)),
        taken_(capacity),
        owners_(capacity) {
    CHECK(buffer_->size_bytes() >= capacity * stride_bytes_);
    free_.reserve(capacity);
    for (uint32_t slot = capacity; slot > 0; --slot) free_.push_back(SlotId(slot - 1));
    AnnounceUse(0);
  }

  uint32_t capacity() const { return static_cast<uint32_t>(taken_.size()); }
  uint32_t free_count() const { return static_cast<uint32_t>(free_.size()); }
  bool IsTaken(SlotId slot) const { return taken_.at(slot.value()); }

  // There is a free slot.
  SlotId Take() {
    CHECK(!free_.empty());
    const SlotId slot = free_.back();
    free_.pop_back();
    taken_[slot.value()] = true;
    AnnounceUse((size_t{slot.value()} + 1) * stride_bytes_);
    return slot;
  }

  // `slot` is taken.
  void Give(SlotId slot) {
    CHECK(IsTaken(slot));
    taken_[slot.value()] = false;
    owners_[slot.value()] = BlockId();
    free_.push_back(slot);
  }

  // A taken slot has a copy of the block, until it is given back.
  void SetOwner(SlotId slot, BlockId block) {
    CHECK(IsTaken(slot));
    owners_[slot.value()] = block;
  }
  // By slot; none: it is free, or a move's.
  std::span<const BlockId> owners() const { return owners_; }

  std::byte* Address(SlotId slot) const {
    CHECK(IsTaken(slot));
    return buffer_->data() + slot.value() * stride_bytes_;
  }

 private:
  // Fresh slots are taken in order, so what comes next is known: this much of it.
  static constexpr size_t kAnnouncedBytes = size_t{256} << 20;

  void AnnounceUse(size_t used_bytes) {
    if (used_bytes + kAnnouncedBytes / 2 <= announced_bytes_) return;
    announced_bytes_ = used_bytes + kAnnouncedBytes;
    buffer_->WillUse(announced_bytes_);
  }

  std::unique_ptr<Buffer> buffer_;
  size_t stride_bytes_;
  size_t announced_bytes_ = 0;
  std::vector<SlotId> free_;
  std::vector<bool> taken_;
  std::vector<BlockId> owners_;
};

}  // namespace cairn
