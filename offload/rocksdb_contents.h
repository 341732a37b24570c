// The table of contents of a segment follows its file by itself: RocksDB shows every record that it
// writes into a table to a collector, which puts what it saw into the table's properties.
#pragma once

#include <memory>
#include <string>

namespace rocksdb {
class TablePropertiesCollectorFactory;
}  // namespace rocksdb

namespace cairn {

// The property that has EncodeContents of the table's records.
inline constexpr char kContentsProperty[] = "cairn.contents";

// Values are records (block_record.h), keys their ids (record_key.h).
std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> ContentsCollector();

}  // namespace cairn
