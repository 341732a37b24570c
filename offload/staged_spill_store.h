// A SpillStore for blocks in the memory of a device that the threads of a disk cannot address: each
// block passes through a slot of the host's memory.
//
//   load    waits for a slot --> disk reads and verifies --> copy to the device --> completion
//   spill   waits for a slot --> copy from the device --> disk appends (the slot is free again)
//           ... --> completion
//
// What lies in the host's memory goes straight through. Copies go through the queue of all copies
// (copy_queue.h). Writes, closes and retirements reach the disk in the order of the calls.
//
// (1) A completion says that the bytes are where they are to be, or that the disk has failed, or
//     the copy (copy_failed): then the record is as it was, or there is none.
// (2) There are `slot_count` slots. Loads leave one of them for spills, spills at least half of
//     them for loads.
// (3) An order can be cancelled until its copy begins or the disk refuses, and leaves nothing.
// (4) Orders to write that have not reached the disk count as used bytes.
// Threads: the engine thread only. It has to be polled while is_copying(): copies wake nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kernels/device.h"
#include "offload/copy_queue.h"
#include "offload/slot_pool.h"
#include "offload/spill_store.h"

namespace cairn {

class StagedSpillStore final : public SpillStore {
 public:
  static constexpr uint32_t kSlotCountMin = 2;

  // `device_memory` is what cannot be addressed. It, `device` and `copies` are there as long as
  // orders are given; what `copies` has begun is over before the store ends.
  static Result<std::unique_ptr<StagedSpillStore>> Create(std::unique_ptr<SpillStore> disk,
                                                          Device& device, CopyQueue& copies,
                                                          std::span<const std::byte> device_memory,
                                                          size_t block_bytes, uint32_t slot_count);

  std::vector<FoundRecord> TakeFound() override { return disk_->TakeFound(); }
  SegmentId OldestSegment() const override { return disk_->OldestSegment(); }
  void Write(SpillWrite order) override;
  void Close() override;
  void Read(SpillRead order) override;
  void Retire(SpillRetire order) override;
  bool Cancel(SpillTicket ticket) override;
  std::vector<SpillCompletion> Poll() override;
  std::vector<SpillTicket> TakeReturned() override { return {}; }
  SpillStats stats() const override;

  bool is_copying() const { return !uploads_.empty() || download_count_ > 0 || !failed_.empty(); }
  void CheckInvariants() const;  // each slot in use has one order

 private:
  struct CloseOrder {};
  struct Store {
    SpillWrite order;
    SlotId slot;   // of one that is to be copied, or has been
    CopyRef copy;  // then
  };
  using WriterOrder = std::variant<Store, CloseOrder, SpillRetire>;
  struct Load {  // the disk reads it
    std::span<std::byte> target;
    SlotId slot;
  };
  struct Upload {  // on its way to the device
    SpillCompletion completion;
    SlotId slot;
    CopyRef copy;
  };

  StagedSpillStore(std::unique_ptr<SpillStore> disk, CopyQueue& copies,
                   std::span<const std::byte> device_memory, size_t block_bytes, SlotPool slots)
      : copies_(copies),
        device_memory_(device_memory),
        block_bytes_(block_bytes),
        slots_(std::move(slots)),
        disk_(std::move(disk)) {}

  bool IsOnDevice(std::span<const std::byte> payload) const;
  std::span<std::byte> BytesOf(SlotId slot) { return {slots_.Address(slot), block_bytes_}; }
  void HandOverReads();
  void BeginDownloads();
  void HandOverWrites();
  bool HandOver(WriterOrder& order);
  void OnCompletion(SpillCompletion completion, std::vector<SpillCompletion>& done);
  void ReturnSlot(SpillTicket ticket);
  void EndUploads(std::vector<SpillCompletion>& done);

  CopyQueue& copies_;
  const std::span<const std::byte> device_memory_;
  const size_t block_bytes_;
  SlotPool slots_;
  std::unique_ptr<SpillStore> disk_;  // it may use the slots until it is gone
  std::deque<SpillRead> waiting_loads_;
  std::map<SpillTicket, Load> loads_;
  std::deque<Upload> uploads_;
  std::deque<WriterOrder> writer_orders_;
  uint32_t download_count_ = 0;            // of them those that are being copied
  uint32_t store_slot_count_ = 0;          // slots of spills, those below included
  std::map<SpillTicket, SlotId> written_;  // the disk has not appended them yet
  std::vector<SpillCompletion> failed_;    // before the disk heard of them
};

}  // namespace cairn
