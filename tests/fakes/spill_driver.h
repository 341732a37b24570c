// A user of a SpillStore, for tests: blocks and payloads that follow from a number, orders with
// tickets of their own, and a wait for what was ordered.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "offload/rocksdb_spill_store.h"
#include "offload/spill_store.h"

namespace cairn {

// What the folder takes on the disk, as `du` counts it.
uint64_t DiskUsage(const std::string& folder);
// The files below the folder whose names end so, sorted.
std::vector<std::filesystem::path> FilesBelow(const std::string& folder, std::string_view suffix);

BlockIdentity NumberedBlock(uint64_t number, uint32_t token_count);
std::vector<std::byte> NumberedPayload(uint64_t number, size_t size);
// The number of the block; the rest of it must be as NumberedBlock makes it (CHECK).
uint64_t NumberOf(const BlockIdentity& block);

// A layout whose blocks have `block_bytes`, a multiple of 64.
KvLayout LayoutOf(size_t block_bytes);

class SpillDriver {
 public:
  // CHECKs that the store opens.
  SpillDriver(const SpillStoreConfig& config, const KvLayout& layout,
              const Digest& fingerprint = {1, 2});
  ~SpillDriver();

  SpillStore& store() { return *store_; }
  const std::vector<FoundRecord>& found() const { return found_; }

  SpillTicket Write(uint64_t number);
  SpillTicket Read(RecordId record, uint64_t number);
  SpillTicket Retire(SegmentId segment, std::vector<RecordId> keep);
  bool Cancel(SpillTicket ticket);

  struct Ended {
    enum class Kind { kWrite, kRead, kRetire } kind;
    uint64_t number = 0;  // of a write or read
    bool intact = false;  // of a read: the bytes are those of the block
    SegmentId retired;
    SpillCompletion completion;
  };
  // Waits until at least `count` orders have ended, and returns all that have.
  std::vector<Ended> Wait(size_t count);
  std::vector<Ended> WaitForAll() { return Wait(orders_.size()); }
  size_t outstanding() const { return orders_.size(); }

  // One order, and its end. The writes come with a Close.
  std::vector<Ended> WriteAll(uint64_t first, uint64_t count);
  Ended ReadOne(RecordId record, uint64_t number);
  Ended RetireOne(SegmentId segment, std::vector<RecordId> keep = {});

 private:
  struct Order {
    Ended::Kind kind;
    uint64_t number = 0;
    SegmentId retired;
    std::vector<std::byte> payload;
  };
  struct Bell;
  SpillTicket NextTicket() { return SpillTicket(next_ticket_++); }

  const KvLayout layout_;
  std::shared_ptr<Bell> bell_;
  std::unique_ptr<SpillStore> store_;
  std::vector<FoundRecord> found_;
  std::map<SpillTicket, Order> orders_;
  uint64_t next_ticket_ = 0;
};

}  // namespace cairn
