#include "tests/bench/rocksdb_variants.h"

#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <cstring>

#include "base/check.h"
#include "offload/record_key.h"
#include "offload/rocksdb_support.h"

namespace cairn {
namespace {

rocksdb::Options CommonOptions(uint64_t table_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  table.checksum = rocksdb::kXXH3;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::Options options;
  options.create_if_missing = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = table_bytes;
  options.max_write_buffer_number = 3;
  options.use_direct_reads = true;
  options.max_open_files = -1;
  options.bytes_per_sync = 1 << 20;
  options.info_log = SilentLogger();
  return options;
}

rocksdb::Options FifoOptions(uint64_t quota_bytes, uint64_t table_bytes) {
  rocksdb::Options options = CommonOptions(table_bytes);
  options.compaction_style = rocksdb::kCompactionStyleFIFO;
  options.compaction_options_fifo.max_table_files_size = quota_bytes;
  options.level0_slowdown_writes_trigger = 1 << 20;
  options.level0_stop_writes_trigger = 1 << 20;
  return options;
}

class Database : public SpillVariant {
 public:
  Database(const std::string& path, rocksdb::Options options) : options_(std::move(options)) {
    rocksdb::DB* db = nullptr;
    CHECK(rocksdb::DB::Open(options_, path, &db).ok());
    db_.reset(db);
  }

  void Put(uint64_t id, std::string_view record) override {
    rocksdb::WriteOptions unlogged;
    unlogged.disableWAL = true;
    CHECK(db_->Put(unlogged, RecordKey(RecordId(id)), rocksdb::Slice(record.data(), record.size()))
              .ok());
  }

  void Flush() override { CHECK(db_->Flush(rocksdb::FlushOptions()).ok()); }

  bool Get(uint64_t id, std::span<char> record) override {
    rocksdb::PinnableSlice value;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(),
                                            RecordKey(RecordId(id)), &value);
    CHECK(status.ok() || status.IsNotFound());
    if (!status.ok()) return false;
    CHECK(value.size() == record.size());
    std::memcpy(record.data(), value.data(), value.size());
    return true;
  }

 protected:
  rocksdb::DB& db() { return *db_; }
  const rocksdb::Options options_;

 private:
  std::unique_ptr<rocksdb::DB> db_;
};

class Ingesting final : public Database {
 public:
  Ingesting(const std::string& path, const rocksdb::Options& options, uint64_t table_bytes)
      : Database(path, options), file_(path + "/open.sst"), table_bytes_(table_bytes) {}

  void Put(uint64_t id, std::string_view record) override {
    if (!writer_) {
      rocksdb::EnvOptions env_options(options_);
      writer_ = std::make_unique<rocksdb::SstFileWriter>(env_options, options_);
      CHECK(writer_->Open(file_).ok());
    }
    CHECK(writer_->Put(RecordKey(RecordId(id)), rocksdb::Slice(record.data(), record.size())).ok());
    if (writer_->FileSize() + record.size() > table_bytes_) Flush();
  }

  void Flush() override {
    if (!writer_) return;
    CHECK(writer_->Finish().ok());
    writer_.reset();
    rocksdb::IngestExternalFileOptions ingest;
    ingest.move_files = true;
    ingest.write_global_seqno = false;
    CHECK(db().IngestExternalFile({file_}, ingest).ok());
  }

 private:
  const std::string file_;
  const uint64_t table_bytes_;
  std::unique_ptr<rocksdb::SstFileWriter> writer_;
};

class Compacting final : public Database {
 public:
  Compacting(const std::string& path, const rocksdb::Options& options, uint64_t quota_bytes)
      : Database(path, options), quota_bytes_(quota_bytes) {}

  void Put(uint64_t id, std::string_view record) override {
    Database::Put(id, record);
    const uint64_t kept = quota_bytes_ / record.size();
    if (id < kept) return;
    rocksdb::WriteOptions unlogged;
    unlogged.disableWAL = true;
    CHECK(db().Delete(unlogged, RecordKey(RecordId(id - kept))).ok());
  }

 private:
  const uint64_t quota_bytes_;
};

}  // namespace

std::unique_ptr<SpillVariant> MemtableFifo(const std::string& path, uint64_t quota_bytes,
                                           uint64_t table_bytes) {
  return std::make_unique<Database>(path, FifoOptions(quota_bytes, table_bytes));
}

std::unique_ptr<SpillVariant> IngestFifo(const std::string& path, uint64_t quota_bytes,
                                         uint64_t table_bytes) {
  return std::make_unique<Ingesting>(path, FifoOptions(quota_bytes, table_bytes), table_bytes);
}

std::unique_ptr<SpillVariant> Leveled(const std::string& path, uint64_t quota_bytes,
                                      uint64_t table_bytes) {
  return std::make_unique<Compacting>(path, CommonOptions(table_bytes), quota_bytes);
}

}  // namespace cairn
