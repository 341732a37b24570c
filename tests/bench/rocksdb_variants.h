// Other ways to keep immutable records in RocksDB within a quota, for spill_bench to compare with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

class SpillVariant {
 public:
  virtual ~SpillVariant() = default;
  virtual void Put(uint64_t id, std::string_view record) = 0;  // ids grow
  virtual void Flush() = 0;                                    // everything can be read
  virtual bool Get(uint64_t id, std::span<char> record) = 0;   // false: it has gone; any thread
};

// FIFO compaction, which drops the oldest table when there are more than `quota_bytes`. Records go
// through memtables (without a write-ahead log), or into tables of `table_bytes` that are ingested.
std::unique_ptr<SpillVariant> MemtableFifo(const std::string& path, uint64_t quota_bytes,
                                           uint64_t table_bytes);
std::unique_ptr<SpillVariant> IngestFifo(const std::string& path, uint64_t quota_bytes,
                                         uint64_t table_bytes);

// The ordinary way: level compaction, and deletes of what is to go.
std::unique_ptr<SpillVariant> Leveled(const std::string& path, uint64_t quota_bytes,
                                      uint64_t table_bytes);

}  // namespace cairn
