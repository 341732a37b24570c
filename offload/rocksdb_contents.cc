#include "offload/rocksdb_contents.h"

#include <rocksdb/table_properties.h>

#include "base/check.h"
#include "offload/block_record.h"
#include "offload/record_key.h"
#include "offload/segment_contents.h"

namespace cairn {
namespace {

class Collector final : public rocksdb::TablePropertiesCollector {
 public:
  rocksdb::Status AddUserKey(const rocksdb::Slice& key, const rocksdb::Slice& value,
                             rocksdb::EntryType /*type*/, rocksdb::SequenceNumber /*number*/,
                             uint64_t /*file_size*/) override {
    // Only our own writer feeds it, so anything else is a bug.
    const auto id = ParseRecordKey(key.ToStringView());
    auto header = ParseRecordHeader(std::as_bytes(std::span(value.data(), value.size())));
    CHECK(id && header.ok());
    if (contents_.records.empty()) contents_.origin = header->origin;
    CHECK(header->origin == contents_.origin);
    contents_.records.emplace_back(*id, std::move(header->block));
    return rocksdb::Status::OK();
  }

  rocksdb::Status Finish(rocksdb::UserCollectedProperties* properties) override {
    properties->emplace(kContentsProperty, EncodeContents(contents_));
    return rocksdb::Status::OK();
  }

  rocksdb::UserCollectedProperties GetReadableProperties() const override { return {}; }
  const char* Name() const override { return "CairnContents"; }

 private:
  SegmentContents contents_;
};

class Factory final : public rocksdb::TablePropertiesCollectorFactory {
 public:
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(
      rocksdb::TablePropertiesCollectorFactory::Context /*context*/) override {
    return new Collector;  // RocksDB's interface: it deletes it
  }
  const char* Name() const override { return "CairnContents"; }
};

}  // namespace

std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> ContentsCollector() {
  return std::make_shared<Factory>();
}

}  // namespace cairn
