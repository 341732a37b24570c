// The disk tier's turns: orders come in on the engine's thread, wait in two queues, run on the
// threads of two pools, and end as completions. rocksdb_spill_store.h says when segments close and
// how the quota counts; this class is what opens there.
//
//   engine's thread   orders, Poll, stats        segment_spill_store.cc
//   writer            one order after the other  segment_spill_writer.cc
//   readers           reads, a few at a time     segment_spill_store.cc
//
// (1) mutex_ guards what the threads share, and is never held while the disk works.
// (2) A write is reserved in the ledger from its order to its segment's close, or its failure.
// (3) Each order that was not cancelled has exactly one completion.
// (4) Reads begin in the order in which they were ordered. One that waits for its turn or for the
//     budget has not begun, so at most kSpillReadThreads cannot be cancelled any more.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "kernels/kv_layout.h"
#include "offload/io_budget.h"
#include "offload/rocksdb_segments.h"
#include "offload/rocksdb_spill_store.h"
#include "offload/segment_ledger.h"
#include "offload/spill_store.h"

namespace cairn {

class SegmentSpillStore final : public SpillStore {
 public:
  SegmentSpillStore(const SpillStoreConfig& config, const KvLayout& layout,
                    std::unique_ptr<RocksdbSegments> files, std::vector<SegmentFile> found,
                    std::function<void()> wake);
  ~SegmentSpillStore() override;

  std::vector<FoundRecord> TakeFound() override;
  SegmentId OldestSegment() const override;
  void Write(SpillWrite order) override;
  void Close() override;
  void Read(SpillRead order) override;
  void Retire(SpillRetire order) override;
  bool Cancel(SpillTicket ticket) override;
  std::vector<SpillCompletion> Poll() override;
  std::vector<SpillTicket> TakeReturned() override;
  SpillStats stats() const override;

 private:
  struct CloseOrder {};
  using WriterOrder = std::variant<SpillWrite, CloseOrder, SpillRetire>;
  // Of the open segment: what ends when it is closed.
  struct Appended {
    SpillTicket ticket;
    RecordId record;
    std::chrono::nanoseconds time;
  };
  struct Moving {
    SpillRetire order;
    std::vector<SpillCompletion::Moved> moved;
    std::chrono::nanoseconds time;
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
  size_t waiting_readers_ = 0;  // for their turn; each will take an order, if one is left
  std::vector<SpillCompletion> completions_;
  std::vector<SpillTicket> returned_;
  bool moving_waits_ = false;  // retirements wait for the open segment
  uint64_t bytes_read_ = 0;
  uint64_t bytes_written_ = 0;
  uint64_t record_count_ = 0;

  // Of the writer's thread.
  RecordId next_id_;
  std::vector<Appended> appended_;
  std::vector<Moving> moving_;
  uint64_t open_count_ = 0;  // records in the open segment

  boost::asio::thread_pool writer_{1};
  boost::asio::thread_pool readers_{kSpillReadThreads};
  boost::asio::steady_timer idle_timer_{writer_};
};

}  // namespace cairn
