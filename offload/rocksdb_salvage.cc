#include "offload/rocksdb_salvage.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/metadata.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBatchBytes = 1u << 20;
constexpr size_t kKeyBytesMax = 4096;

Status FromError(const std::error_code& error, const std::string& path) {
  return error ? Unavailable(path + ": " + error.message()) : Status();
}

Status SyncFolder(const fs::path& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = folder >= 0 && fsync(folder) == 0;
  const std::error_code error(synced ? 0 : errno, std::generic_category());
  if (folder >= 0) close(folder);
  return FromError(error, path);
}

Status Move(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  RETURN_IF_ERROR(FromError(error, from));
  return SyncFolder(fs::path(to).parent_path());
}

Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return FromError(error, path);
}

Result<std::unique_ptr<rocksdb::DB>> OpenToRead(const rocksdb::Options& options,
                                                const std::string& path) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, path, &opened);
  if (!status.ok()) return FromRocksdb(status, path);
  return std::unique_ptr<rocksdb::DB>(opened);
}

// The tables that the database is made of, whether they can be read or not.
Result<std::vector<rocksdb::LiveFileMetaData>> TablesOf(rocksdb::Options options,
                                                        const std::string& path) {
  options.paranoid_checks = false;
  ASSIGN_OR_RETURN(const std::unique_ptr<rocksdb::DB> database, OpenToRead(options, path));
  std::vector<rocksdb::LiveFileMetaData> tables;
  database->GetLiveFilesMetaData(&tables);
  return tables;
}

void LogDamaged(const rocksdb::Options& options,
                const std::vector<rocksdb::LiveFileMetaData>& tables) {
  for (const rocksdb::LiveFileMetaData& table : tables) {
    rocksdb::SstFileReader reader(options);
    const std::string path = table.directory + table.name;
    rocksdb::Status read = reader.Open(path);
    if (read.ok()) read = reader.VerifyChecksum();
    if (read.ok()) continue;
    LogError("sessions: " + path + ", a table of " + std::to_string(table.size) +
             " bytes, is damaged: " + read.ToString());
  }
}

// The same database without its damaged tables, at `path`. Files are shared, and none is changed.
Status RepairBeside(const rocksdb::Options& options, const std::string& damaged,
                    const std::vector<rocksdb::LiveFileMetaData>& tables, const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  RETURN_IF_ERROR(FromError(error, path));
  std::vector<fs::path> files;
  files.reserve(tables.size());
  for (const rocksdb::LiveFileMetaData& table : tables) files.push_back(damaged + table.name);
  for (const auto& entry : fs::directory_iterator(damaged, error)) {
    if (entry.path().extension() == ".log") files.push_back(entry.path());
  }
  RETURN_IF_ERROR(FromError(error, damaged));
  for (const fs::path& file : files) {
    if (!fs::exists(file, error)) continue;
    fs::create_hard_link(file, path / file.filename(), error);
    RETURN_IF_ERROR(FromError(error, file));
  }
  return FromRocksdb(rocksdb::RepairDB(path, options), path);
}

// Puts keys in order into a database that is made for them.
class Copy {
 public:
  static Result<std::unique_ptr<Copy>> Create(const rocksdb::Options& options,
                                              const std::string& path,
                                              const std::set<std::string>& known) {
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, path, &opened);
    if (!status.ok()) return FromRocksdb(status, path);
    return std::make_unique<Copy>(std::unique_ptr<rocksdb::DB>(opened), path, known);
  }
  Copy(std::unique_ptr<rocksdb::DB> database, std::string path, const std::set<std::string>& known)
      : database_(std::move(database)), path_(std::move(path)), unseen_(known) {}

  Status Put(const rocksdb::Slice& key, const rocksdb::Slice& value) {
    unseen_.erase(key.ToString());
    const rocksdb::Status added = batch_.Put(key, value);
    if (!added.ok()) return FromRocksdb(added, path_);
    return batch_.GetDataSize() < kBatchBytes ? Status() : Write();
  }
  // An empty value for each key that is known to have been there and was not put; so many those
  // are.
  Result<uint64_t> PutLost() {
    const uint64_t count = unseen_.size();
    for (const std::string& key : std::exchange(unseen_, {})) RETURN_IF_ERROR(Put(key, ""));
    return count;
  }
  // Everything is on the device.
  Status Finish() {
    RETURN_IF_ERROR(Write());
    RETURN_IF_ERROR(FromRocksdb(database_->Flush({}), path_));
    return FromRocksdb(database_->Close(), path_);
  }

 private:
  Status Write() {
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    RETURN_IF_ERROR(FromRocksdb(database_->Write(options, &batch_), path_));
    batch_.Clear();
    return Status();
  }

  const std::unique_ptr<rocksdb::DB> database_;
  const std::string path_;
  std::set<std::string> unseen_;
  rocksdb::WriteBatch batch_;
};

// The bytes that the tables have for keys before `end`. They are counted from the indexes, which
// can be read where a block cannot, and grow with each key of any table.
uint64_t BytesBefore(rocksdb::DB& database, const std::string& end) {
  rocksdb::SizeApproximationOptions exactly;
  exactly.include_files = true;
  exactly.files_size_error_margin = -1;
  const rocksdb::Range range(rocksdb::Slice(), end);
  uint64_t bytes = 0;
  const rocksdb::Status status =
      database.GetApproximateSizes(exactly, database.DefaultColumnFamily(), &range, 1, &bytes);
  return status.ok() ? bytes : 0;
}

// The first key from `from` on that a table has, whether its value can be read or not. It is the
// greatest one before which nothing new is counted.
std::optional<std::string> NextKey(rocksdb::DB& database, const std::string& from) {
  const uint64_t before = BytesBefore(database, from);
  const auto is_after = [&](const std::string& end) { return BytesBefore(database, end) > before; };
  std::string key;
  while (!is_after(key + '\0')) {
    if (key.size() == kKeyBytesMax) return std::nullopt;  // nothing is counted any more
    int low = 0, high = 256;                              // the next byte is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (is_after(key + static_cast<char>(middle)) ? high : low) = middle;
    }
    key += static_cast<char>(low);
  }
  return key;
}

// Everything that can be read, in order, and an empty value for each key that cannot; so many those
// are.
Result<uint64_t> CopyReadable(rocksdb::DB& database, Copy& copy, const std::string& path) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  uint64_t lost = 0;
  std::string from;  // everything before it is copied
  while (true) {
    const std::unique_ptr<rocksdb::Iterator> at(database.NewIterator(options));
    for (at->Seek(from); at->Valid(); at->Next()) {
      RETURN_IF_ERROR(copy.Put(at->key(), at->value()));
      from = at->key().ToString() + '\0';
    }
    if (at->status().ok()) return lost;
    // An iterator that stops may have looked ahead, so its key is read by itself.
    const std::optional<std::string> key = NextKey(database, from);
    if (!key) return FromRocksdb(at->status(), path);
    std::string value;
    const rocksdb::Status read = database.Get(options, *key, &value);
    if (!read.ok() && !read.IsNotFound()) {
      ++lost;
      value.clear();
    }
    if (!read.IsNotFound()) RETURN_IF_ERROR(copy.Put(*key, value));
    from = *key + '\0';
  }
}

}  // namespace

void MakeSalvageable(rocksdb::Options& options) {
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 1;  // is full with one key
  table.index_shortening = rocksdb::BlockBasedTableOptions::IndexShorteningMode::kNoShortening;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
}

Status SalvageDatabase(const rocksdb::Options& options, const std::string& path,
                       const std::set<std::string>& known, const KeyVisitor& before) {
  const std::string work = path + ".salvage";
  RETURN_IF_ERROR(RemoveAll(work));
  ASSIGN_OR_RETURN(const auto tables, TablesOf(options, path));
  LogDamaged(options, tables);
  RETURN_IF_ERROR(RepairBeside(options, path, tables, work + "/undamaged"));
  ASSIGN_OR_RETURN(auto undamaged, OpenToRead(options, work + "/undamaged"));
  ASSIGN_OR_RETURN(auto copy, Copy::Create(options, work + "/whole", known));
  uint64_t lost = 0;
  if (const auto damaged = OpenToRead(options, path); damaged.ok()) {
    ASSIGN_OR_RETURN(lost, CopyReadable(**damaged, *copy, path));
    RETURN_IF_ERROR(ScanKeys(*undamaged, "", before, path));
  } else {
    ASSIGN_OR_RETURN(lost, CopyReadable(*undamaged, *copy, path));
  }
  ASSIGN_OR_RETURN(const uint64_t unnamed, copy->PutLost());
  RETURN_IF_ERROR(copy->Finish());
  copy.reset();
  undamaged.reset();
  RETURN_IF_ERROR(Move(work + "/whole", path + ".salvaged"));
  RETURN_IF_ERROR(FinishSalvage(path));
  LogError("sessions: a new database in " + path + " has what can be read; " +
           std::to_string(lost + unnamed) + " values are lost. The damaged one is in " + path +
           ".damaged");
  return Status();
}

Status FinishSalvage(const std::string& path) {
  RETURN_IF_ERROR(RemoveAll(path + ".salvage"));
  const std::string salvaged = path + ".salvaged", damaged = path + ".damaged";
  if (!fs::exists(salvaged)) return Status();
  if (fs::exists(path)) {
    RETURN_IF_ERROR(RemoveAll(damaged));
    RETURN_IF_ERROR(Move(path, damaged));
  }
  return Move(salvaged, path);
}

}  // namespace cairn
