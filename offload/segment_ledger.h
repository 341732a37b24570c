// What the disk tier has and what it has promised: closed segments, who reads them, and how much of
// the quota is used. Bookkeeping only; it touches no file.
//
// (1) used_bytes() <= quota_bytes, unless what was installed is more already.
// (2) A record that is ordered to be written is reserved with the most that it can take, until the
//     segment that it is in takes its place, or it fails.
// Threads: none of its own; its owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "offload/rocksdb_segments.h"
#include "offload/spill_store.h"

namespace cairn {

class SegmentLedger {
 public:
  SegmentLedger(uint64_t quota_bytes, uint64_t record_bytes)
      : quota_bytes_(quota_bytes), record_bytes_(record_bytes) {}

  // The closed segments are these. Of those that were there before, what is known stays known.
  void Install(std::vector<SegmentFile> files);
  // A segment was closed in place of `record_count` reserved records.
  void Add(SegmentFile file, uint64_t record_count);

  uint64_t used_bytes() const;
  bool has_room() const { return used_bytes() + record_bytes_ <= quota_bytes_; }
  // Reserves room for so many of `record_count` records as fit, and says how many.
  uint64_t Reserve(uint64_t record_count);
  void Release(uint64_t record_count);

  const SegmentFile* Find(SegmentId id) const;
  // The oldest segment that is not being retired; none: invalid.
  SegmentId Oldest() const;
  void BeginRetire(SegmentId id);  // a closed segment that is not being retired (CHECK)
  // It has gone, or it stays, and may be retired again. It may have gone without this.
  void EndRetire(SegmentId id, bool gone);

  // Reads of a record that is in no closed segment are not counted.
  void BeginRead(RecordId record);
  void EndRead(RecordId record);
  bool is_read(SegmentId id) const;

  size_t segment_count() const { return segments_.size(); }
  size_t foreign_count() const;

 private:
  struct Segment {
    SegmentFile file;
    bool retiring = false;
    uint32_t reads = 0;  // begun, not ended
  };
  Segment* SegmentOf(RecordId record);

  const uint64_t quota_bytes_;
  const uint64_t record_bytes_;
  std::map<SegmentId, Segment> segments_;
  uint64_t reserved_count_ = 0;  // records
};

}  // namespace cairn
