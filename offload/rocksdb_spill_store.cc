#include "offload/rocksdb_spill_store.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <variant>

#include "base/check.h"
#include "base/log.h"
#include "offload/io_budget.h"
#include "offload/rocksdb_segments.h"
#include "offload/segment_ledger.h"

namespace cairn {
namespace {

namespace asio = boost::asio;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr uint64_t kSegmentBytesMin = uint64_t{4} << 20;
constexpr uint64_t kSegmentBytesMax = uint64_t{64} << 20;

class RocksdbSpillStore final : public SpillStore {
 public:
  RocksdbSpillStore(const SpillStoreConfig& config, const KvLayout& layout,
                    std::unique_ptr<RocksdbSegments> files, std::vector<SegmentFile> found,
                    std::function<void()> wake);
  ~RocksdbSpillStore() override;

  std::vector<FoundRecord> TakeFound() override;
  SegmentId OldestSegment() const override;
  void Write(SpillWrite order) override;
  void Close() override;
  void Read(SpillRead order) override;
  void Retire(SpillRetire order) override;
  bool Cancel(SpillTicket ticket) override;
  std::vector<SpillCompletion> Poll() override;
  SpillStats stats() const override;

 private:
  struct CloseOrder {};
  using WriterOrder = std::variant<SpillWrite, CloseOrder, SpillRetire>;
  // Of the open segment: what ends when it is closed.
  struct Appended {
    SpillTicket ticket;
    RecordId record;
    nanoseconds time;
  };
  struct Moving {
    SpillRetire order;
    std::vector<SpillCompletion::Moved> moved;
    nanoseconds time;
  };

  // With mutex_ held.
  void EndRead(RecordId record);
  void Enqueue(WriterOrder order);

  // On the writer's thread.
  void RunNextOrder();
  void Run(SpillWrite& order);
  void Run(CloseOrder& order);
  void Run(SpillRetire& order);
  void CloseIfFull();
  void CloseSegment();
  Result<SegmentFile> FinishFile();
  void FailAppended(const Status& status);
  void Drop(Moving retirement);
  Status EnsureUsable();
  void ArmIdleTimer();

  void RunNextRead();
  void Complete(std::vector<SpillCompletion> completions);

  const SpillStoreConfig config_;
  const size_t payload_bytes_;
  const size_t block_tokens_;
  const uint64_t record_bytes_;
  const std::unique_ptr<RocksdbSegments> files_;
  const std::function<void()> wake_;
  IoBudget budget_;

  mutable std::mutex mutex_;
  std::condition_variable read_ended_;
  SegmentLedger ledger_;
  std::vector<FoundRecord> found_;
  std::deque<WriterOrder> writer_orders_;
  std::deque<SpillRead> read_orders_;
  std::vector<SpillCompletion> completions_;
  bool moving_waits_ = false;  // retirements wait for the open segment
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;

  // Of the writer's thread.
  RecordId next_id_;
  std::vector<Appended> appended_;
  std::vector<Moving> moving_;
  uint64_t open_count_ = 0;  // records in the open segment

  asio::thread_pool writer_{1};
  asio::thread_pool readers_{kSpillReadThreads};
  asio::steady_timer idle_timer_{writer_};
};

RocksdbSpillStore::RocksdbSpillStore(const SpillStoreConfig& config, const KvLayout& layout,
                                     std::unique_ptr<RocksdbSegments> files,
                                     std::vector<SegmentFile> found, std::function<void()> wake)
    : config_(config),
      payload_bytes_(layout.block_bytes()),
      block_tokens_(layout.block_tokens),
      record_bytes_(RecordFileBytesMax(layout.block_tokens, layout.block_bytes())),
      files_(std::move(files)),
      wake_(std::move(wake)),
      budget_(config.bandwidth_limit),
      ledger_(config.quota_bytes, record_bytes_),
      next_id_(files_->first_free_id()) {
  for (SegmentFile& file : found) {
    for (auto& [id, block] : file.records) found_.push_back({id, file.id, std::move(block)});
    file.records.clear();
  }
  ledger_.Install(std::move(found));
}

RocksdbSpillStore::~RocksdbSpillStore() {
  {
    std::lock_guard lock(mutex_);
    writer_orders_.clear();
    while (!read_orders_.empty()) {
      EndRead(read_orders_.front().record);
      read_orders_.pop_front();
    }
  }
  budget_.Stop();
  asio::post(writer_, [this] {
    idle_timer_.cancel();
    CloseSegment();  // it is being written; what it has is worth its end
  });
  readers_.join();
  writer_.join();
}

std::vector<FoundRecord> RocksdbSpillStore::TakeFound() {
  std::lock_guard lock(mutex_);
  return std::exchange(found_, {});
}

SegmentId RocksdbSpillStore::OldestSegment() const {
  std::lock_guard lock(mutex_);
  return ledger_.Oldest();
}

void RocksdbSpillStore::Write(SpillWrite order) {
  CHECK(order.payload.size() == payload_bytes_ && order.block.tokens.size() <= block_tokens_);
  {
    std::lock_guard lock(mutex_);
    if (ledger_.Reserve(1) == 1) {
      Enqueue(std::move(order));
      return;
    }
    // What was moved frees the segment that it comes from only when the open one is closed.
    if (std::exchange(moving_waits_, false)) Enqueue(CloseOrder());
  }
  Complete({{.ticket = order.ticket,
             .status = ResourceExhausted("disk tier: the quota of " +
                                         std::to_string(config_.quota_bytes) + " bytes is used")}});
}

void RocksdbSpillStore::Close() {
  std::lock_guard lock(mutex_);
  Enqueue(CloseOrder());
}

void RocksdbSpillStore::Retire(SpillRetire order) {
  std::lock_guard lock(mutex_);
  // What a recovery found gone ends like what is removed, in its turn.
  if (ledger_.Find(order.segment) == nullptr) {
    order.keep.clear();
  } else {
    ledger_.BeginRetire(order.segment);
    order.keep.resize(ledger_.Reserve(order.keep.size()));  // what does not fit is left out
  }
  Enqueue(std::move(order));
}

void RocksdbSpillStore::Read(SpillRead order) {
  CHECK(order.payload.size() == payload_bytes_);
  std::lock_guard lock(mutex_);
  ledger_.BeginRead(order.record);
  budget_.ReadOrdered();
  read_orders_.push_back(std::move(order));
  asio::post(readers_, [this] { RunNextRead(); });
}

bool RocksdbSpillStore::Cancel(SpillTicket ticket) {
  std::lock_guard lock(mutex_);
  const auto read = std::find_if(read_orders_.begin(), read_orders_.end(),
                                 [&](const SpillRead& order) { return order.ticket == ticket; });
  if (read != read_orders_.end()) {
    EndRead(read->record);
    read_orders_.erase(read);
    return true;
  }
  const auto write =
      std::find_if(writer_orders_.begin(), writer_orders_.end(), [&](const WriterOrder& order) {
        const auto* waiting = std::get_if<SpillWrite>(&order);
        return waiting != nullptr && waiting->ticket == ticket;
      });
  if (write == writer_orders_.end()) return false;
  writer_orders_.erase(write);
  ledger_.Release(1);
  return true;
}

std::vector<SpillCompletion> RocksdbSpillStore::Poll() {
  std::lock_guard lock(mutex_);
  return std::exchange(completions_, {});
}

SpillStats RocksdbSpillStore::stats() const {
  std::lock_guard lock(mutex_);
  SpillStats stats;
  stats.quota_bytes = config_.quota_bytes;
  stats.used_bytes = ledger_.used_bytes();
  stats.segment_bytes = config_.segment_bytes;
  stats.record_bytes = record_bytes_;
  stats.bandwidth_limit = config_.bandwidth_limit;
  stats.segment_count = ledger_.segment_count();
  stats.bytes_read = bytes_read_;
  stats.bytes_written = bytes_written_;
  stats.foreign_segments = ledger_.foreign_count();
  return stats;
}

void RocksdbSpillStore::EndRead(RecordId record) {
  budget_.ReadEnded();
  ledger_.EndRead(record);
  read_ended_.notify_all();
}

void RocksdbSpillStore::Enqueue(WriterOrder order) {
  writer_orders_.push_back(std::move(order));
  asio::post(writer_, [this] { RunNextOrder(); });
}

void RocksdbSpillStore::RunNextOrder() {
  WriterOrder order;
  {
    std::lock_guard lock(mutex_);
    if (writer_orders_.empty()) return;  // some were cancelled
    order = std::move(writer_orders_.front());
    writer_orders_.pop_front();
  }
  std::visit([this](auto& one) { Run(one); }, order);
  ArmIdleTimer();
}

void RocksdbSpillStore::Run(SpillWrite& order) {
  budget_.WaitToWrite(record_bytes_);
  const auto start = steady_clock::now();
  const RecordId id = next_id_;
  next_id_ = RecordId(id.value() + 1);
  ++open_count_;
  const Status status = files_->Append(id, order.block, order.payload);
  appended_.push_back({order.ticket, id, steady_clock::now() - start});
  if (!status.ok()) return FailAppended(status);
  CloseIfFull();
}

void RocksdbSpillStore::Run(CloseOrder& /*order*/) { CloseSegment(); }

void RocksdbSpillStore::Run(SpillRetire& order) {
  const auto start = steady_clock::now();
  Moving moving{std::move(order), {}, {}};
  for (const RecordId from : moving.order.keep) {
    budget_.WaitToWrite(2 * record_bytes_);  // it is read and written
    const Status status = files_->Copy(from, next_id_);
    std::lock_guard lock(mutex_);
    if (!status.ok()) {
      LogWarning("disk tier: not kept: " + status.message());
      ledger_.Release(1);
      continue;
    }
    bytes_read_ += record_bytes_;
    ++open_count_;
    moving.moved.push_back({from, next_id_, SegmentId()});
    next_id_ = RecordId(next_id_.value() + 1);
  }
  moving.time = steady_clock::now() - start;
  if (moving.moved.empty()) return Drop(std::move(moving));
  moving_.push_back(std::move(moving));
  bool has_room = false;
  {
    std::lock_guard lock(mutex_);
    moving_waits_ = true;
    has_room = ledger_.has_room();
  }
  if (has_room) {
    CloseIfFull();
  } else {
    CloseSegment();
  }
}

void RocksdbSpillStore::CloseIfFull() {
  if (files_->open_bytes() + record_bytes_ > config_.segment_bytes) CloseSegment();
}

void RocksdbSpillStore::CloseSegment() {
  if (files_->open_bytes() == 0) return;
  const auto start = steady_clock::now();
  Result<SegmentFile> file = FinishFile();
  if (!file.ok()) return FailAppended(file.status());
  const size_t record_count = appended_.size() + 1;
  const nanoseconds share = (steady_clock::now() - start) / record_count;
  const SegmentId id = file->id;
  {
    std::lock_guard lock(mutex_);
    bytes_written_ += file->file_bytes;
    ledger_.Add(*std::move(file), std::exchange(open_count_, 0));
    moving_waits_ = false;
  }
  std::vector<SpillCompletion> completions;
  for (const Appended& record : std::exchange(appended_, {})) {
    completions.push_back({.ticket = record.ticket,
                           .record = record.record,
                           .segment = id,
                           .time = record.time + share});
  }
  if (!completions.empty()) Complete(std::move(completions));
  for (Moving& moving : std::exchange(moving_, {})) {
    for (auto& moved : moving.moved) moved.segment = id;
    Drop(std::move(moving));
  }
}

Result<SegmentFile> RocksdbSpillStore::FinishFile() {
  if (Status usable = EnsureUsable(); !usable.ok()) {
    files_->Abandon();
    return usable;
  }
  return files_->Finish();
}

// The open segment is gone, with all that was written to it.
void RocksdbSpillStore::FailAppended(const Status& status) {
  files_->Abandon();
  {
    std::lock_guard lock(mutex_);
    ledger_.Release(std::exchange(open_count_, 0));
    moving_waits_ = false;
  }
  std::vector<SpillCompletion> completions;
  for (const Appended& record : std::exchange(appended_, {})) {
    completions.push_back({.ticket = record.ticket, .status = status, .time = record.time});
  }
  if (!completions.empty()) Complete(std::move(completions));
  for (Moving& moving : std::exchange(moving_, {})) {
    moving.moved.clear();
    Drop(std::move(moving));
  }
}

// Removes the retired segment once nobody reads it.
void RocksdbSpillStore::Drop(Moving retirement) {
  const SegmentId id = retirement.order.segment;
  SegmentFile file;
  {
    std::unique_lock lock(mutex_);
    read_ended_.wait(lock, [&] { return !ledger_.is_read(id); });
    // A recovery may have found it gone.
    if (const SegmentFile* closed = ledger_.Find(id)) file = *closed;
  }
  const auto start = steady_clock::now();
  Status status;
  if (file.id.valid()) {
    status = EnsureUsable();
    if (status.ok()) status = files_->Drop(file);
  }
  {
    std::lock_guard lock(mutex_);
    ledger_.EndRetire(id, status.ok());
  }
  Complete({{.ticket = retirement.order.ticket,
             .status = status,
             .moved = std::move(retirement.moved),
             .time = retirement.time + (steady_clock::now() - start)}});
}

Status RocksdbSpillStore::EnsureUsable() {
  if (!files_->needs_recovery()) return Status();
  RETURN_IF_ERROR(files_->Recover());
  ASSIGN_OR_RETURN(auto found, files_->Scan());
  next_id_ = std::max(next_id_, files_->first_free_id());
  std::lock_guard lock(mutex_);
  ledger_.Install(std::move(found));
  return Status();
}

void RocksdbSpillStore::ArmIdleTimer() {
  if (files_->open_bytes() == 0) return;
  idle_timer_.expires_after(config_.idle_close);
  idle_timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) CloseSegment();
  });
}

void RocksdbSpillStore::RunNextRead() {
  SpillRead order;
  {
    std::lock_guard lock(mutex_);
    if (read_orders_.empty()) return;  // some were cancelled
    order = std::move(read_orders_.front());
    read_orders_.pop_front();
  }
  budget_.WaitToRead(record_bytes_);
  const auto start = steady_clock::now();
  Status status = files_->Read(order.record, order.block, order.payload);
  const nanoseconds time = steady_clock::now() - start;
  {
    std::lock_guard lock(mutex_);
    bytes_read_ += record_bytes_;
    EndRead(order.record);
  }
  Complete({{.ticket = order.ticket, .status = std::move(status), .time = time}});
}

void RocksdbSpillStore::Complete(std::vector<SpillCompletion> completions) {
  {
    std::lock_guard lock(mutex_);
    std::move(completions.begin(), completions.end(), std::back_inserter(completions_));
  }
  wake_();
}

// The quota may have become smaller since the segments were written.
Status FitQuota(RocksdbSegments& files, std::vector<SegmentFile>& found, uint64_t quota_bytes) {
  uint64_t used = kDatabaseBytesMax;
  for (const SegmentFile& file : found) used += file.file_bytes;
  size_t dropped = 0;
  for (; used > quota_bytes; ++dropped) {
    RETURN_IF_ERROR(files.Drop(found[dropped]));
    used -= found[dropped].file_bytes;
  }
  found.erase(found.begin(), found.begin() + static_cast<ptrdiff_t>(dropped));
  return Status();
}

}  // namespace

Result<SpillStoreConfig> SpillStoreConfig::Resolve(const KvLayout& layout) const {
  SpillStoreConfig resolved = *this;
  if (segment_bytes == 0) {
    resolved.segment_bytes = std::clamp(quota_bytes / 16, kSegmentBytesMin, kSegmentBytesMax);
  }
  const uint64_t record_bytes = RecordFileBytesMax(layout.block_tokens, layout.block_bytes());
  const uint64_t needed = kDatabaseBytesMax + 2 * std::max(resolved.segment_bytes, record_bytes);
  if (quota_bytes < needed) {
    return InvalidArgument("disk tier: a quota of " + std::to_string(quota_bytes) +
                           " bytes is too small, at least " + std::to_string(needed) +
                           " are needed");
  }
  return resolved;
}

Result<std::unique_ptr<SpillStore>> OpenSpillStore(const SpillStoreConfig& config,
                                                   const Digest& fingerprint,
                                                   const KvLayout& layout,
                                                   std::function<void()> wake) {
  ASSIGN_OR_RETURN(const SpillStoreConfig resolved, config.Resolve(layout));
  ASSIGN_OR_RETURN(auto files,
                   RocksdbSegments::Open(config.directory, OriginOf(fingerprint, layout.Id())));
  ASSIGN_OR_RETURN(auto found, files->Scan());
  RETURN_IF_ERROR(FitQuota(*files, found, resolved.quota_bytes));
  return std::unique_ptr<SpillStore>(std::make_unique<RocksdbSpillStore>(
      resolved, layout, std::move(files), std::move(found), std::move(wake)));
}

}  // namespace cairn
