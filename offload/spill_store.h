// Where copies of sealed blocks lie on a disk, and how they get there and back. A SpillStore
// carries out orders; BlockStore, its only caller, decides which.
//
// Records (block_record.h) are appended to segments. A segment is written once, becomes readable
// when it is closed, and goes as a whole: nothing is rewritten in place, and a record that nobody
// wants any more costs space until its segment goes. What is worth keeping of a segment is moved to
// a newer one when it is retired (the second chance of S3-FIFO: Yang and others, SOSP 2023).
//
//   Write --> (open segment) --Close--> readable --Read-->
//                                          |
//                                          +--Retire--> moved to the open segment, or gone
//
// Every order ends with one SpillCompletion of the same ticket, in any order, unless Cancel stopped
// it. An order's memory, which is the host's, stays valid until then. A completion tells of a
// failure by its status; kDataLoss: the record is not what it should be, and the copy is lost;
// kNotFound: it is not there, be it that its segment went before the read was ordered.
// Nothing here throws, blocks the caller on the disk, or tries again.
//
// (1) A record is never readable before it is complete and would survive the death of the process.
// (2) used_bytes never exceeds quota_bytes, and the files on disk never exceed it either.
// (3) A Read gives the bytes that were written, verified, or an error.
// Threads: the engine thread only; `wake` comes from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "offload/block_key.h"

namespace cairn {

// One record. Grows from record to record, and is never given twice in a directory.
using RecordId = StrongId<struct RecordIdTag, uint64_t>;
using SegmentId = StrongId<struct SegmentIdTag, uint64_t>;  // the id of its first record
using SpillTicket = StrongId<struct SpillTicketTag, uint64_t>;

// What a record is a copy of: its block's place in its chain, and its own tokens.
struct BlockIdentity {
  BlockKey key;
  BlockKey parent;
  uint32_t first_position = 0;
  std::vector<uint32_t> tokens;  // of the block
  friend bool operator==(const BlockIdentity&, const BlockIdentity&) = default;
};

// A record of an earlier process.
struct FoundRecord {
  RecordId record;
  SegmentId segment;
  BlockIdentity block;
};

struct SpillWrite {
  SpillTicket ticket;
  BlockIdentity block;
  std::span<const std::byte> payload;  // the block's bytes
  bool returns_payload = false;        // TakeReturned says when they are not read any more
};

struct SpillRead {
  SpillTicket ticket;
  RecordId record;
  BlockIdentity block;           // the record must be of it
  std::span<std::byte> payload;  // where the bytes go; unspecified after a failure
};

struct SpillRetire {
  SpillTicket ticket;
  SegmentId segment;
  std::vector<RecordId> keep;  // moved to the open segment before the segment goes; they fit
};

struct SpillCompletion {
  SpillTicket ticket;
  Status status;
  bool copy_failed = false;  // between the device and the host: that is no failure of the disk
  RecordId record;           // of a write: where it lies
  SegmentId segment;         // of a write
  // Of a retirement: from where to where. What could not be read or written again is left out. True
  // also when the segment could not be removed: then it is still there, and may be retired again.
  struct Moved {
    RecordId from;
    RecordId to;
    SegmentId segment;  // of `to`
  };
  std::vector<Moved> moved;
  std::chrono::nanoseconds time{0};  // of the operation itself, without waiting for its turn
  std::chrono::steady_clock::time_point ended;  // of a read: when
};

struct SpillStats {
  uint64_t quota_bytes = 0;
  uint64_t reserved_bytes = 0;  // of it, what is no record's: counted as used from the start
  uint64_t used_bytes = 0;      // closed segments, and what was ordered to be written
  uint64_t segment_bytes = 0;   // a segment is closed when it has so much
  uint64_t record_bytes = 0;    // what one block takes
  uint64_t segment_count = 0;   // closed ones
  uint64_t bytes_read = 0;      // since the start
  uint64_t bytes_written = 0;
  uint64_t record_count = 0;      // read, appended or moved since the start: the store gets on
  uint64_t bandwidth_limit = 0;   // bytes a second; 0: none
  uint64_t foreign_segments = 0;  // of another model, layout or version: left alone until they age
  // Slots of the host's memory through which blocks pass, and those that are in use; 0: none pass.
  uint32_t staging_count = 0;
  uint32_t staged_count = 0;
};

class SpillStore {
 public:
  virtual ~SpillStore() = default;  // finishes what it is doing, forgets what waits

  // What closed segments hold, oldest first. Once, before anything else.
  virtual std::vector<FoundRecord> TakeFound() = 0;
  // The closed segment that was written first, if there is one: the next to retire.
  virtual SegmentId OldestSegment() const = 0;

  // Appends to the open segment, in the order of the calls. Completes when the segment is closed;
  // kResourceExhausted when the quota has no room (retire something first) or the disk is full.
  virtual void Write(SpillWrite order) = 0;
  // Closes the open segment after what was ordered so far, full or not.
  virtual void Close() = 0;
  // Reads begin in the order of the calls, a few at a time.
  virtual void Read(SpillRead order) = 0;
  virtual void Retire(SpillRetire order) = 0;
  // True: a read or write that has not begun; it is forgotten and will not complete.
  virtual bool Cancel(SpillTicket ticket) = 0;

  // What has ended since the last call.
  virtual std::vector<SpillCompletion> Poll() = 0;
  // Of writes that ask for it: those whose payload is not needed any more since the last call. Most
  // have not ended yet.
  virtual std::vector<SpillTicket> TakeReturned() = 0;

  virtual SpillStats stats() const = 0;
};

}  // namespace cairn
