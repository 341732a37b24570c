// The durable store on RocksDB: an ordinary database with a write-ahead log. A store that has
// failed is closed and opened again, which replays the log as after a crash: one way back for every
// kind of failure, and the one that every start takes. While that fails for want of room or of
// permission, the database is open for reading only. Damaged tables are salvaged on the way.
#include <rocksdb/db.h>
#include <rocksdb/merge_operator.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "offload/durable_store.h"
#include "offload/key_roster.h"
#include "offload/rocksdb_salvage.h"
#include "offload/rocksdb_support.h"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kMendPeriod{500};
constexpr size_t kMemtableBytes = 16u << 20;  // about what a start has to replay

// Appends operands to a value.
class AppendOperator final : public rocksdb::MergeOperator {
 public:
  const char* Name() const override { return "cairn.append"; }

  bool FullMergeV2(const MergeOperationInput& in, MergeOperationOutput* out) const override {
    out->new_value.clear();
    if (in.existing_value != nullptr) {
      out->new_value.append(in.existing_value->data(), in.existing_value->size());
    }
    for (const rocksdb::Slice& operand : in.operand_list) {
      out->new_value.append(operand.data(), operand.size());
    }
    return true;
  }

  bool PartialMergeMulti(const rocksdb::Slice&, const std::deque<rocksdb::Slice>& operands,
                         std::string* merged, rocksdb::Logger*) const override {
    merged->clear();
    for (const rocksdb::Slice& operand : operands) merged->append(operand.data(), operand.size());
    return true;
  }
};

using Recovery = rocksdb::WALRecoveryMode;
// After a loss of power the end of the log is what happened to reach the device. Replaying it up to
// the first gap gives everything that was synced, and nothing out of order.
constexpr Recovery kToFirstGap = Recovery::kPointInTimeRecovery;
// The same, but any gap is an error, other than that the last record is not whole.
constexpr Recovery kWithoutGap = Recovery::kTolerateCorruptedTailRecords;
// Everything but what is damaged.
constexpr Recovery kPastGaps = Recovery::kSkipAnyCorruptedRecords;

rocksdb::Options MakeOptions(Recovery recovery) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.merge_operator = std::make_shared<AppendOperator>();
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = kMemtableBytes;
  options.target_file_size_base = kMemtableBytes;  // so much may be lost together
  MakeSalvageable(options);
  options.wal_recovery_mode = recovery;
  // RocksDB's own log is a file beside the data, and Debian builds it with assertions: the process
  // would die when the disk is full and a line of that file could not be written.
  options.info_log = SilentLogger();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

rocksdb::WriteBatch ToWriteBatch(const DurableBatch& batch) {
  rocksdb::WriteBatch writes(batch.bytes() + 32 * batch.changes().size());
  for (const DurableBatch::Change& change : batch.changes()) {
    rocksdb::Status added;
    switch (change.kind) {
      case DurableBatch::Kind::kPut:
        added = writes.Put(change.key, change.value);
        break;
      case DurableBatch::Kind::kAppend:
        added = writes.Merge(change.key, change.value);
        break;
      case DurableBatch::Kind::kDelete:
        added = writes.Delete(change.key);
        break;
      case DurableBatch::Kind::kDeleteRange:
        added = writes.DeleteRange(change.key, change.value);
        break;
    }
    CHECK(added.ok());
  }
  return writes;
}

// Keys and values in memory, for reading.
class KeptState final : public DurableStore {
 public:
  void Keep(std::string_view key, std::string_view value) { values_.emplace(key, value); }
  Status Commit(const DurableBatch&, CommitSync) override {
    return Unavailable("this state is past");
  }
  Status Scan(std::string_view prefix, const Visitor& visit) const override {
    for (auto at = values_.lower_bound(prefix); at != values_.end(); ++at) {
      if (!at->first.starts_with(prefix)) break;
      visit(at->first, at->second);
    }
    return Status();
  }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

class RocksDbDurableStore final : public DurableStore {
 public:
  RocksDbDurableStore(std::string path, const Clock& clock, std::string remembered)
      : path_(std::move(path)),
        clock_(clock),
        remembered_(std::move(remembered)),
        roster_(path_ + ".keys") {}

  Status Open() {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(OpenDatabase());
    const Status whole = FromRocksdb(database_->VerifyChecksum(), path_);
    damaged_ = whole.code() == Code::kDataLoss;
    Status opened = damaged_ ? Mend() : whole;
    if (opened.ok()) Remember();
    lost_ = false;  // nobody has had it in memory
    return opened;
  }

  Status Commit(const DurableBatch& batch, CommitSync sync) override {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok() && clock_.Now() < mend_at_) return failure_;
    if (damaged_ || !writable_) RETURN_IF_ERROR(Mend());
    failure_ = Status();
    if (const Status noted = NoteNewKeys(batch); !noted.ok()) {
      return Fail(Status(noted.code(), noted.message()).WithRetryAfter(kMendPeriod));
    }
    const rocksdb::Status written = Write(batch, sync);
    if (written.ok()) {
      NoteGoneKeys(batch);
      return Status();
    }
    // A database that has found damage takes nothing of any batch. When what was damaged is not
    // part of it any more, it does.
    damaged_ = written.IsCorruption();
    if (damaged_ && Mend().ok() && NoteNewKeys(batch).ok() && Write(batch, sync).ok()) {
      NoteGoneKeys(batch);
      return Status();
    }
    // What was written of the batch is decided now, by opening the database anew: after this,
    // Scan shows what the next commit builds on. The commit itself has failed in any case.
    const Status why = Translate(written);
    (void)Mend();
    return Fail(why);
  }

  Status Scan(std::string_view prefix, const Visitor& visit) const override {
    const std::lock_guard lock(mutex_);
    if (database_ == nullptr) return failure_;
    const Status scanned = ScanKeys(*database_, prefix, visit, path_);
    if (scanned.ok()) return Status();
    damaged_ = scanned.code() == Code::kDataLoss;
    return Unavailable(scanned.message()).WithRetryAfter(kMendPeriod);
  }

  std::unique_ptr<const DurableStore> TakeBeforeDamage() override {
    const std::lock_guard lock(mutex_);
    return std::move(before_damage_);
  }

  bool TakeLost() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(lost_, false);
  }

 private:
  Status Translate(const rocksdb::Status& status) const {
    if (status.IsNoSpace()) {
      return ResourceExhausted("the disk of " + path_ + " is full").WithRetryAfter(kMendPeriod);
    }
    return Unavailable(FromRocksdb(status, path_).message()).WithRetryAfter(kMendPeriod);
  }

  // Commits fail with `why` until it is time to mend the store.
  Status Fail(const Status& why) {
    failure_ = why;
    mend_at_ = clock_.Now() + kMendPeriod;
    return failure_;
  }

  rocksdb::Status Write(const DurableBatch& batch, CommitSync sync) {
    rocksdb::WriteOptions options;
    options.sync = sync == CommitSync::kDevice;
    rocksdb::WriteBatch writes = ToWriteBatch(batch);
    return database_->Write(options, &writes);
  }

  // Opens the database anew, if only for reading.
  Status Mend() {
    database_.reset();
    writable_ = false;
    Status opened = damaged_ ? Salvage() : Status();
    if (opened.ok()) opened = OpenDatabase();
    if (opened.ok()) {
      Remember();
      return Status();
    }
    rocksdb::DB* readable = nullptr;
    if (rocksdb::DB::OpenForReadOnly(MakeOptions(kToFirstGap), path_, &readable).ok()) {
      database_.reset(readable);
    }
    return Fail(opened);
  }

  // Of a database that is closed.
  Status Salvage() {
    auto before = std::make_unique<KeptState>();
    const Status salvaged = SalvageDatabase(
        MakeOptions(kPastGaps), path_, roster_.keys(),
        [&](std::string_view key, std::string_view value) { before->Keep(key, value); });
    if (!salvaged.ok()) {
      return Unavailable(path_ + " is damaged, and cannot be salvaged: " + salvaged.message())
          .WithRetryAfter(kMendPeriod);
    }
    before_damage_ = std::move(before);
    damaged_ = false;
    lost_ = true;
    return Status();
  }

  Status OpenDatabase() {
    RETURN_IF_ERROR(FinishSalvage(path_));
    rocksdb::Status status = TryOpen(kWithoutGap);
    if (status.IsCorruption()) {
      const std::string damage = status.ToString();
      before_damage_ = ReadBeforeDamage();
      status = TryOpen(kPastGaps);
      if (status.ok()) {
        LogWarning("sessions: the log in " + path_ +
                   " is damaged, and what it says there is lost: " + damage);
      }
    }
    if (status.IsCorruption()) {  // of a table, then
      RETURN_IF_ERROR(Salvage());
      status = TryOpen(kWithoutGap);
    }
    if (!status.ok()) return Translate(status);
    writable_ = true;
    return Status();
  }

  // The roster has the remembered keys that the database has. Without success it has some more.
  void Remember() {
    if (remembered_.empty()) return;
    std::set<std::string> keys;
    Status done = ScanKeys(
        *database_, remembered_, [&](std::string_view key, std::string_view) { keys.emplace(key); },
        path_);
    if (done.ok()) done = roster_.Replace(std::move(keys));
    if (!done.ok()) LogWarning("sessions: " + done.message());
  }

  // The remembered keys that the batch puts, or that it deletes.
  std::vector<std::string> Remembered(const DurableBatch& batch, bool deleted) const {
    std::map<std::string, bool> is_deleted;  // by the last change of each
    for (const DurableBatch::Change& change : batch.changes()) {
      if (remembered_.empty() || !change.key.starts_with(remembered_)) continue;
      CHECK(change.kind != DurableBatch::Kind::kDeleteRange);
      is_deleted[change.key] = change.kind == DurableBatch::Kind::kDelete;
    }
    std::vector<std::string> keys;
    for (const auto& [key, is_gone] : is_deleted) {
      if (is_gone == deleted) keys.push_back(key);
    }
    return keys;
  }
  Status NoteNewKeys(const DurableBatch& batch) { return roster_.Add(Remembered(batch, false)); }
  // A name too many is put right at the next opening, unless its table is lost by then.
  void NoteGoneKeys(const DurableBatch& batch) {
    const Status noted = roster_.Remove(Remembered(batch, true));
    if (!noted.ok()) LogWarning("sessions: " + noted.message());
  }

  rocksdb::Status TryOpen(Recovery recovery) {
    rocksdb::DB* opened = nullptr;
    rocksdb::Status status = rocksdb::DB::Open(MakeOptions(recovery), path_, &opened);
    database_.reset(opened);
    return status;
  }

  std::unique_ptr<const DurableStore> ReadBeforeDamage() const {
    auto kept = std::make_unique<KeptState>();
    rocksdb::DB* opened = nullptr;
    if (!rocksdb::DB::OpenForReadOnly(MakeOptions(kToFirstGap), path_, &opened).ok()) return kept;
    const std::unique_ptr<rocksdb::DB> database(opened);
    const Status scanned = ScanKeys(
        *database, "",
        [&](std::string_view key, std::string_view value) { kept->Keep(key, value); }, path_);
    if (!scanned.ok()) LogWarning("sessions: " + scanned.message());
    return kept;
  }

  const std::string path_;
  const Clock& clock_;
  const std::string remembered_;
  mutable std::mutex mutex_;  // of all below
  KeyRoster roster_;
  std::unique_ptr<rocksdb::DB> database_;
  bool writable_ = false;
  Status failure_;  // ok, or commits fail with it before mend_at_
  Clock::Monotonic mend_at_;
  mutable bool damaged_ = false;  // to be salvaged, once it is written to
  bool lost_ = false;
  std::unique_ptr<const DurableStore> before_damage_;
};

}  // namespace

Result<std::unique_ptr<DurableStore>> OpenDurableStore(const std::string& path, const Clock& clock,
                                                       const std::string& remembered) {
  auto store = std::make_unique<RocksDbDurableStore>(path, clock, remembered);
  RETURN_IF_ERROR(store->Open());
  return std::unique_ptr<DurableStore>(std::move(store));
}

}  // namespace cairn
