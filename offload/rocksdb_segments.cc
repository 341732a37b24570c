#include "offload/rocksdb_segments.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <shared_mutex>

#include "base/log.h"
#include "offload/direct_writer.h"
#include "offload/record_key.h"
#include "offload/rocksdb_contents.h"
#include "offload/rocksdb_direct_file.h"
#include "offload/rocksdb_support.h"
#include "offload/segment_contents.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// What a record adds to its file at most: a trailer of its block, its share of the table's index,
// and its entry in the contents. And a file: properties, a footer, and the part of the file
// system's last block that it does not use. To be sure, the latter is counted with every record.
constexpr uint64_t kRecordExtraBytes = 128 + kBlockTokensMax * sizeof(uint32_t);
constexpr uint64_t kFileExtraBytes = 8 << 10;

rocksdb::Options DatabaseOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // the host tier is the cache
  table.block_size = 1;         // a record in each, so that damage of one takes no other with it
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;

  rocksdb::Options options;
  options.create_if_missing = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  options.num_levels = 2;  // the first stays empty; only from the others a file can be dropped
  options.disable_auto_compactions = true;
  options.write_buffer_size = 64 << 10;  // never used
  options.max_open_files = 512;  // 32 GiB of full segments; more are opened when they are read
  options.max_file_opening_threads = 4;
  // A damaged file then costs its own segment and not the database; records verify themselves.
  options.paranoid_checks = false;
  options.skip_stats_update_on_db_open = true;
  options.allow_fallocate = false;  // space that is taken ahead would count against the quota
  options.max_manifest_file_size = 1 << 20;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = SilentLogger();
  options.table_properties_collector_factories.push_back(ContentsCollector());
  return options;
}

rocksdb::EnvOptions WriterEnvOptions() {
  rocksdb::EnvOptions env_options;
  env_options.use_mmap_writes = false;
  env_options.writable_file_max_buffer_size = 64 << 10;  // records are larger: no copy of them
  return env_options;
}

uint64_t DiskBytes(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

}  // namespace

uint64_t RecordFileBytesMax(size_t token_count, size_t payload_bytes) {
  return RecordBytes(token_count, payload_bytes) + kRecordExtraBytes + kFileExtraBytes;
}

struct RocksdbSegments::Database {
  std::string directory;
  RecordOrigin origin;
  rocksdb::Options options = DatabaseOptions();
  std::unique_ptr<rocksdb::Env> writer_env = DirectWriteEnv();
  rocksdb::Options writer_options = DatabaseOptions();

  // A read has both, one after the other; who wants to be alone keeps the first while it waits for
  // the second, so that reads, which overlap, cannot keep it away.
  mutable std::mutex gate;
  mutable std::shared_mutex reading;
  std::unique_ptr<rocksdb::DB> db;
  RecordId first_free_id;
  bool needs_recovery = false;

  std::unique_ptr<rocksdb::SstFileWriter> writer;
  std::string writer_path;
  RecordId writer_first, writer_last;
  uint64_t writer_bytes = 0;
  std::string record;  // the one that is being written

  std::string path() const { return directory + "/database"; }
  std::shared_lock<std::shared_mutex> BeginRead() const {
    std::lock_guard pass(gate);
    return std::shared_lock(reading);
  }
  std::unique_lock<std::shared_mutex> AwaitReads() {  // those that have begun; new ones wait
    std::lock_guard pass(gate);
    return std::unique_lock(reading);
  }
  Status Open();
  Status ReserveIds();
  Status Get(RecordId id, rocksdb::PinnableSlice& value) const;
  Result<Record> GetRecord(RecordId id, rocksdb::PinnableSlice& value) const;
  Result<SegmentFile> Describe(const rocksdb::LiveFileMetaData& file) const;
  Status DropRange(RecordId first, RecordId last);
  void AbandonWriter();
};

Status RocksdbSegments::Database::Open() {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, path(), &opened);
  if (!status.ok()) return FromRocksdb(status, directory);
  db.reset(opened);
  RETURN_IF_ERROR(ReserveIds());
  needs_recovery = false;
  return Status();
}

// Every opening takes a new number for its (unused) write-ahead log, from the same counter as all
// files, which RocksDB never sets back. Ids that begin with it are larger than all before, also
// when the segments that had them are gone.
Status RocksdbSegments::Database::ReserveIds() {
  std::unique_ptr<rocksdb::LogFile> log;
  const rocksdb::Status status = db->GetCurrentWalFile(&log);
  if (!status.ok()) return FromRocksdb(status, directory);
  first_free_id = RecordId(log->LogNumber() << 32);
  return Status();
}

Status RocksdbSegments::Database::Get(RecordId id, rocksdb::PinnableSlice& value) const {
  if (!db) return Unavailable("the database could not be opened again");
  const rocksdb::Status status =
      db->Get(rocksdb::ReadOptions(), db->DefaultColumnFamily(), RecordKey(id), &value);
  return FromRocksdb(status, "record " + std::to_string(id.value()));
}

Result<Record> RocksdbSegments::Database::GetRecord(RecordId id,
                                                    rocksdb::PinnableSlice& value) const {
  RETURN_IF_ERROR(Get(id, value));
  return DecodeRecord(std::as_bytes(std::span(value.data(), value.size())));
}

Status RocksdbSegments::Database::DropRange(RecordId first, RecordId last) {
  const std::string begin = RecordKey(first), end = RecordKey(last);
  const rocksdb::Slice begin_key = begin, end_key = end;
  return FromRocksdb(
      rocksdb::DeleteFilesInRange(db.get(), db->DefaultColumnFamily(), &begin_key, &end_key),
      "segment " + std::to_string(first.value()));
}

// What the file at `file` is, from its properties.
Result<SegmentFile> RocksdbSegments::Database::Describe(
    const rocksdb::LiveFileMetaData& file) const {
  SegmentFile segment;
  segment.id = SegmentId(ParseRecordKey(file.smallestkey)->value());
  segment.last = *ParseRecordKey(file.largestkey);
  segment.file_bytes = DiskBytes(file.db_path + file.name);
  rocksdb::TablePropertiesCollection properties;
  const rocksdb::Range range(file.smallestkey, file.largestkey);
  const rocksdb::Status status =
      db->GetPropertiesOfTablesInRange(db->DefaultColumnFamily(), &range, 1, &properties);
  if (!status.ok()) return FromRocksdb(status, file.name);
  CHECK(properties.size() == 1);  // key ranges do not overlap
  const auto& collected = properties.begin()->second->user_collected_properties;
  const auto property = collected.find(kContentsProperty);
  if (property == collected.end()) {
    segment.foreign = true;
    return segment;
  }
  auto contents = ParseContents(property->second);
  if (contents.status().code() == Code::kDataLoss) return contents.status();
  segment.foreign = !contents.ok() || contents->origin != origin;
  if (contents.ok() && (contents->records.front().first.value() != segment.id.value() ||
                        contents->records.back().first != segment.last)) {
    return Status(Code::kDataLoss, file.name + ": is the file of another segment");
  }
  if (!segment.foreign) segment.records = std::move(contents->records);
  return segment;
}

void RocksdbSegments::Database::AbandonWriter() {
  if (!writer) return;
  writer.reset();
  std::error_code ignored;
  fs::remove(writer_path, ignored);
}

Result<std::unique_ptr<RocksdbSegments>> RocksdbSegments::Open(const std::string& directory,
                                                               const RecordOrigin& origin) {
  auto database = std::make_unique<Database>();
  database->directory = directory;
  database->origin = origin;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Unavailable(directory + ": " + error.message());
  database->options.use_direct_reads = HasDirectIo(directory);
  database->writer_options.env = database->writer_env.get();
  RETURN_IF_ERROR(database->Open());
  fs::remove_all(directory + "/open", error);
  fs::create_directory(directory + "/open", error);
  if (error) return Unavailable(directory + "/open: " + error.message());
  return std::unique_ptr<RocksdbSegments>(new RocksdbSegments(std::move(database)));
}

RocksdbSegments::RocksdbSegments(std::unique_ptr<Database> database)
    : database_(std::move(database)) {}

RocksdbSegments::~RocksdbSegments() { database_->AbandonWriter(); }

RecordId RocksdbSegments::first_free_id() const { return database_->first_free_id; }
bool RocksdbSegments::needs_recovery() const { return database_->needs_recovery; }

Result<std::vector<SegmentFile>> RocksdbSegments::Scan() {
  std::vector<rocksdb::LiveFileMetaData> files;
  database_->db->GetLiveFilesMetaData(&files);
  std::vector<SegmentFile> segments;
  for (const rocksdb::LiveFileMetaData& file : files) {
    const auto first = ParseRecordKey(file.smallestkey), last = ParseRecordKey(file.largestkey);
    if (!first || !last) {
      return FailedPrecondition(database_->path() + file.name + ": its keys are not record ids");
    }
    auto segment = database_->Describe(file);
    if (segment.ok()) {
      segments.push_back(*std::move(segment));
      continue;
    }
    const std::string& reason = segment.status().message();
    if (segment.status().code() == Code::kDataLoss) {
      LogWarning("disk tier: segment lost: " + reason);
      RETURN_IF_ERROR(database_->DropRange(*first, *last));
    } else {
      LogWarning("disk tier: segment left alone: " + reason);
      segments.push_back({.id = SegmentId(first->value()),
                          .last = *last,
                          .file_bytes = DiskBytes(file.db_path + file.name),
                          .foreign = true});
    }
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentFile& a, const SegmentFile& b) { return a.id < b.id; });
  return segments;
}

Status RocksdbSegments::Put(RecordId id, std::string_view record) {
  Database& to = *database_;
  if (!to.writer) {
    to.writer_path = to.directory + "/open/" + std::to_string(id.value()) + ".sst";
    to.writer = std::make_unique<rocksdb::SstFileWriter>(WriterEnvOptions(), to.writer_options,
                                                         nullptr, false);
    const rocksdb::Status opened = to.writer->Open(to.writer_path);
    if (!opened.ok()) {
      to.AbandonWriter();
      return FromRocksdb(opened, "new segment");
    }
    to.writer_first = id;
    to.writer_bytes = 0;
  }
  const rocksdb::Status status =
      to.writer->Put(RecordKey(id), rocksdb::Slice(record.data(), record.size()));
  CHECK(!status.IsInvalidArgument());  // ids grow
  to.writer_last = id;
  to.writer_bytes += record.size() + kRecordExtraBytes;
  return FromRocksdb(status, "open segment");
}

Status RocksdbSegments::Append(RecordId id, const BlockIdentity& block,
                               std::span<const std::byte> payload) {
  // RocksDB takes a record in one piece.
  const EncodedRecord encoded = EncodeRecord(database_->origin, block, payload);
  std::string& record = database_->record;
  record.assign(encoded.header);
  record.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  record.append(reinterpret_cast<const char*>(encoded.digest.data()), encoded.digest.size());
  return Put(id, record);
}

Status RocksdbSegments::Copy(RecordId from, RecordId to) {
  rocksdb::PinnableSlice value;
  ASSIGN_OR_RETURN(const Record record, database_->GetRecord(from, value));
  RETURN_IF_ERROR(ExpectRecord(record.header, database_->origin, record.header.block));
  return Put(to, value.ToStringView());
}

uint64_t RocksdbSegments::open_bytes() const {
  return database_->writer ? database_->writer_bytes : 0;
}

Result<SegmentFile> RocksdbSegments::Finish() {
  Database& from = *database_;
  CHECK(from.writer);
  SegmentFile segment;
  segment.id = SegmentId(from.writer_first.value());
  segment.last = from.writer_last;
  const std::string what = "segment " + std::to_string(segment.id.value());
  const rocksdb::Status finished = from.writer->Finish();
  if (!finished.ok()) {
    from.AbandonWriter();
    return FromRocksdb(finished, what);
  }
  segment.file_bytes = DiskBytes(from.writer_path);

  rocksdb::IngestExternalFileOptions ingest;
  ingest.move_files = true;
  ingest.failed_move_fall_back_to_copy = false;
  // Keys are new and in nobody's way, so the file is taken as it is.
  ingest.snapshot_consistency = false;
  ingest.allow_global_seqno = false;
  ingest.allow_blocking_flush = false;
  ingest.write_global_seqno = false;
  ingest.fail_if_not_bottommost_level = true;
  const rocksdb::Status ingested = from.db->IngestExternalFile({from.writer_path}, ingest);
  from.AbandonWriter();  // the database has its own link to the file, or it is not wanted
  if (!ingested.ok()) {
    from.needs_recovery = true;
    return FromRocksdb(ingested, what);
  }
  return segment;
}

void RocksdbSegments::Abandon() { database_->AbandonWriter(); }

Status RocksdbSegments::Drop(const SegmentFile& segment) {
  const RecordId first(segment.id.value());
  std::vector<rocksdb::LiveFileMetaData> files;
  database_->db->GetLiveFilesMetaData(&files);
  const auto file = std::find_if(files.begin(), files.end(), [&](const auto& candidate) {
    return candidate.smallestkey == RecordKey(first);
  });
  if (file == files.end()) return Status();  // a drop that failed halfway had got so far
  const std::string path = file->db_path + file->name;
  if (Status status = database_->DropRange(first, segment.last); !status.ok()) {
    database_->needs_recovery = true;
    return status;
  }
  // A read of any segment that was under way keeps what was there when it began, and nobody would
  // remove the file after it.
  if (std::error_code ignored; fs::exists(path, ignored)) {
    database_->AwaitReads().unlock();
    database_->db->EnableFileDeletions(true).PermitUncheckedError();  // looks for what to remove
  }
  if (std::error_code ignored; !fs::exists(path, ignored)) return Status();
  database_->needs_recovery = true;  // which looks again
  return Unavailable(path + ": cannot be removed");
}

Status RocksdbSegments::Recover() {
  const auto alone = database_->AwaitReads();
  database_->db.reset();
  database_->needs_recovery = true;  // until it is open
  return database_->Open();
}

Status RocksdbSegments::Read(RecordId id, const BlockIdentity& block,
                             std::span<std::byte> payload) const {
  const auto reading = database_->BeginRead();
  rocksdb::PinnableSlice value;
  ASSIGN_OR_RETURN(const Record record, database_->GetRecord(id, value));
  RETURN_IF_ERROR(ExpectRecord(record.header, database_->origin, block));
  if (record.payload.size() != payload.size()) {
    return Status(Code::kDataLoss, "record: payload has " + std::to_string(record.payload.size()) +
                                       " bytes, not " + std::to_string(payload.size()));
  }
  std::memcpy(payload.data(), record.payload.data(), payload.size());
  return Status();
}

}  // namespace cairn
