// The disk tier: a SpillStore over segments in RocksDB (rocksdb_segments.h). Here are the turns of
// orders, the quota, and the completions.
//
// Orders run on threads of their own: writes, closes and retirements on one, in their order; reads
// on kSpillReadThreads. Reads go before writes (io_budget.h).
//
// A segment is closed when the next record would make it larger than segment_bytes, on Close, when
// nothing was written to it for idle_close, and when the quota has no room while a retirement waits
// for what it moved. What was written to an open segment is completed, or fails, as one.
//
// The quota counts what files take on the disk, metadata of RocksDB by a fixed reserve, and ordered
// writes by an upper bound. The directory may so be used up to quota_bytes, and never beyond.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/digest.h"
#include "base/status.h"
#include "kernels/kv_layout.h"
#include "offload/spill_store.h"

namespace cairn {

// Two keep the disk busy while the third verifies what it has read.
inline constexpr int kSpillReadThreads = 3;

struct SpillStoreConfig {
  std::string directory;  // DataDirectory::blocks_path()
  uint64_t quota_bytes = 0;
  uint64_t segment_bytes = 0;    // 0: a sixteenth of the quota, 1 to 64 MiB; a record at least
  uint64_t bandwidth_limit = 0;  // bytes a second, reads and writes together; 0: no limit
  std::chrono::milliseconds idle_close{1000};

  // With the size of segments chosen. kInvalidArgument: the quota has no room for a record and
  // the next segment.
  Result<SpillStoreConfig> Resolve(const KvLayout& layout) const;
};

// Opens the directory, or makes it. Blocks of `layout`, made by the model of `fingerprint`, are
// what it reads and writes; segments of others are foreign. `wake` is called after completions are
// there for Poll, from threads of the store, until its destructor ends.
//
// kInvalidArgument: the configuration. Other codes: the database cannot be opened.
Result<std::unique_ptr<SpillStore>> OpenSpillStore(const SpillStoreConfig& config,
                                                   const Digest& fingerprint,
                                                   const KvLayout& layout,
                                                   std::function<void()> wake);

}  // namespace cairn
