#include "offload/segment_spill_store.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/check.h"

namespace cairn {

namespace asio = boost::asio;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

SegmentSpillStore::SegmentSpillStore(const SpillStoreConfig& config, const KvLayout& layout,
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

SegmentSpillStore::~SegmentSpillStore() {
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

std::vector<FoundRecord> SegmentSpillStore::TakeFound() {
  std::lock_guard lock(mutex_);
  return std::exchange(found_, {});
}

SegmentId SegmentSpillStore::OldestSegment() const {
  std::lock_guard lock(mutex_);
  return ledger_.Oldest();
}

void SegmentSpillStore::Write(SpillWrite order) {
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

void SegmentSpillStore::Close() {
  std::lock_guard lock(mutex_);
  Enqueue(CloseOrder());
}

void SegmentSpillStore::Retire(SpillRetire order) {
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

void SegmentSpillStore::Read(SpillRead order) {
  CHECK(order.payload.size() == payload_bytes_);
  std::lock_guard lock(mutex_);
  ledger_.BeginRead(order.record);
  budget_.ReadOrdered();
  read_orders_.push_back(std::move(order));
  asio::post(readers_, [this] { RunNextRead(); });
}

bool SegmentSpillStore::Cancel(SpillTicket ticket) {
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

std::vector<SpillCompletion> SegmentSpillStore::Poll() {
  std::lock_guard lock(mutex_);
  return std::exchange(completions_, {});
}

std::vector<SpillTicket> SegmentSpillStore::TakeReturned() {
  std::lock_guard lock(mutex_);
  return std::exchange(returned_, {});
}

SpillStats SegmentSpillStore::stats() const {
  std::lock_guard lock(mutex_);
  SpillStats stats;
  stats.quota_bytes = config_.quota_bytes;
  stats.reserved_bytes = kDatabaseBytesMax;
  stats.used_bytes = ledger_.used_bytes();
  stats.segment_bytes = config_.segment_bytes;
  stats.record_bytes = record_bytes_;
  stats.bandwidth_limit = config_.bandwidth_limit;
  stats.segment_count = ledger_.segment_count();
  stats.bytes_read = bytes_read_;
  stats.bytes_written = bytes_written_;
  stats.record_count = record_count_;
  stats.foreign_segments = ledger_.foreign_count();
  return stats;
}

void SegmentSpillStore::EndRead(RecordId record) {
  budget_.ReadEnded();
  ledger_.EndRead(record);
  read_ended_.notify_all();
}

void SegmentSpillStore::Enqueue(WriterOrder order) {
  writer_orders_.push_back(std::move(order));
  asio::post(writer_, [this] { RunNextOrder(); });
}

void SegmentSpillStore::RunNextRead() {
  {
    std::lock_guard lock(mutex_);
    if (read_orders_.size() <= waiting_readers_) return;  // some were cancelled
    ++waiting_readers_;
  }
  budget_.WaitToRead(record_bytes_);
  SpillRead order;
  {
    std::lock_guard lock(mutex_);
    --waiting_readers_;
    if (read_orders_.empty()) return budget_.GiveBack(record_bytes_);  // cancelled meanwhile
    order = std::move(read_orders_.front());
    read_orders_.pop_front();
  }
  const auto start = steady_clock::now();
  Status status = files_->Read(order.record, order.block, order.payload);
  const auto ended = steady_clock::now();
  {
    std::lock_guard lock(mutex_);
    bytes_read_ += record_bytes_;
    ++record_count_;
    EndRead(order.record);
  }
  Complete({{.ticket = order.ticket,
             .status = std::move(status),
             .time = ended - start,
             .ended = ended}});
}

void SegmentSpillStore::Complete(std::vector<SpillCompletion> completions) {
  {
    std::lock_guard lock(mutex_);
    std::move(completions.begin(), completions.end(), std::back_inserter(completions_));
  }
  wake_();
}

}  // namespace cairn
