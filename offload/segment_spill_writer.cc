// The half of SegmentSpillStore that runs on the writer's thread.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "offload/segment_spill_store.h"

namespace cairn {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

void SegmentSpillStore::RunNextOrder() {
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

void SegmentSpillStore::Run(SpillWrite& order) {
  budget_.WaitToWrite(record_bytes_);
  const auto start = steady_clock::now();
  const RecordId id = next_id_;
  next_id_ = RecordId(id.value() + 1);
  ++open_count_;
  const Status status = files_->Append(id, order.block, order.payload);
  {
    std::lock_guard lock(mutex_);
    ++record_count_;
    if (order.returns_payload) returned_.push_back(order.ticket);
  }
  if (order.returns_payload) wake_();
  appended_.push_back({order.ticket, id, steady_clock::now() - start});
  if (!status.ok()) return FailAppended(status);
  CloseIfFull();
}

void SegmentSpillStore::Run(CloseOrder& /*order*/) { CloseSegment(); }

void SegmentSpillStore::Run(SpillRetire& order) {
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
    ++record_count_;
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

void SegmentSpillStore::CloseIfFull() {
  if (files_->open_bytes() + record_bytes_ > config_.segment_bytes) CloseSegment();
}

void SegmentSpillStore::CloseSegment() {
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

Result<SegmentFile> SegmentSpillStore::FinishFile() {
  if (Status usable = EnsureUsable(); !usable.ok()) {
    files_->Abandon();
    return usable;
  }
  return files_->Finish();
}

// The open segment is gone, with all that was written to it.
void SegmentSpillStore::FailAppended(const Status& status) {
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
void SegmentSpillStore::Drop(Moving retirement) {
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

Status SegmentSpillStore::EnsureUsable() {
  if (!files_->needs_recovery()) return Status();
  RETURN_IF_ERROR(files_->Recover());
  ASSIGN_OR_RETURN(auto found, files_->Scan());
  next_id_ = std::max(next_id_, files_->first_free_id());
  std::lock_guard lock(mutex_);
  ledger_.Install(std::move(found));
  return Status();
}

void SegmentSpillStore::ArmIdleTimer() {
  if (files_->open_bytes() == 0) return;
  idle_timer_.expires_after(config_.idle_close);
  idle_timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) CloseSegment();
  });
}

}  // namespace cairn
