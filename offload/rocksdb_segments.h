// Segments as files of RocksDB: the half of the disk tier that knows RocksDB, and does its work at
// once, on the thread that asks. rocksdb_spill_store.h is the other half: turns, quota,
// completions.
//
// One segment is one table file (SST). Record ids only grow, so a segment's records are written
// straight into its file, sorted as they come: no memtable, no write-ahead log, no compaction, and
// nothing is written twice. The finished file is handed to the database (ingested), which makes it
// readable and durable in one step. Key ranges of segments do not overlap, so each lies in the last
// level, where the database can drop any file as a whole, and a read knows its file by the ids.
//
//   DIR/database/   RocksDB
//   DIR/open/       the segment that is being written; what a dead process left goes at start
//
// A database that failed to note a change (an ingest, a drop) refuses further ones. Such a failure
// makes needs_recovery() true; Recover opens the database again.
//
// Threads: Read from any number of threads; everything else from one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "offload/block_record.h"
#include "offload/spill_store.h"

namespace cairn {

// A closed segment.
struct SegmentFile {
  SegmentId id;
  RecordId last;                                            // id of its last record
  uint64_t file_bytes = 0;                                  // what it takes on the disk
  bool foreign = false;                                     // not of our model, layout and version
  std::vector<std::pair<RecordId, BlockIdentity>> records;  // of ours, when found by Scan
};

// What a record takes on the disk at most, also when it is alone in its segment.
uint64_t RecordFileBytesMax(size_t token_count, size_t payload_bytes);

// What RocksDB's own files take at most, beside the segments.
inline constexpr uint64_t kDatabaseBytesMax = uint64_t{4} << 20;

class RocksdbSegments {
 public:
  // Makes the directory when it is not there. Only one process has it open (data_directory.h).
  // Errors: as RocksDB says why it cannot open it (FromRocksdb).
  static Result<std::unique_ptr<RocksdbSegments>> Open(const std::string& directory,
                                                       const RecordOrigin& origin);
  ~RocksdbSegments();  // an open segment is lost
  RocksdbSegments(const RocksdbSegments&) = delete;
  RocksdbSegments& operator=(const RocksdbSegments&) = delete;

  // The closed segments, oldest first. A file that is missing or damaged is dropped, and logged;
  // one that cannot be read now counts as foreign.
  Result<std::vector<SegmentFile>> Scan();
  // No record of this directory, past or present, has this id or a larger one.
  RecordId first_free_id() const;

  // Writes to the open segment, which begins with its first record. Ids grow. An error of the disk
  // may show only when the segment is finished.
  Status Append(RecordId id, const BlockIdentity& block, std::span<const std::byte> payload);
  // The same with the bytes of the record `from`, verified.
  Status Copy(RecordId from, RecordId to);
  uint64_t open_bytes() const;  // of the open segment's file, about; 0: there is none
  // Closes the open segment: it is readable and durable, or gone.
  Result<SegmentFile> Finish();
  void Abandon();  // the open segment, if there is one, is gone
  // Removes the segment and waits until its file has gone.
  Status Drop(const SegmentFile& segment);

  bool needs_recovery() const;
  // Opens the database again; Scan tells what is there then. The open segment stays open.
  Status Recover();

  // Verifies the record and copies its payload. kDataLoss: it is not `block`, damaged, or gone.
  Status Read(RecordId id, const BlockIdentity& block, std::span<std::byte> payload) const;

 private:
  struct Database;
  explicit RocksdbSegments(std::unique_ptr<Database> database);
  Status Put(RecordId id, std::string_view record);

  std::unique_ptr<Database> database_;
};

}  // namespace cairn
