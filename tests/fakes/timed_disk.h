// A disk tier in memory that takes the time that a test says, by a clock that the test moves: one
// read after the other, in the order of the calls; writes take none. TimedDisk remembers which
// reads began when. Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "offload/spill_store.h"
#include "tests/fakes/fake_clock.h"

namespace cairn {

class TimedDisk final : public SpillStore {
 public:
  struct Begun {
    BlockIdentity block;
    Clock::Monotonic at;
  };

  TimedDisk(const FakeClock& clock, size_t block_bytes)
      : clock_(clock), block_bytes_(block_bytes) {}

  // What a read takes that begins now; may change at any time.
  std::function<std::chrono::nanoseconds(const BlockIdentity& block)> read_time =
      [](const BlockIdentity&) { return std::chrono::milliseconds(1); };
  const std::vector<Begun>& begun() const { return begun_; }

  std::vector<FoundRecord> TakeFound() override { return {}; }
  SegmentId OldestSegment() const override { return SegmentId(); }
  void Write(SpillWrite order) override {
    const RecordId id(next_record_++);
    records_[id] = {order.payload.begin(), order.payload.end()};
    done_.push_back({.ticket = order.ticket, .record = id, .segment = SegmentId(1)});
  }
  void Close() override {}
  void Read(SpillRead order) override {
    CarryOut();
    reads_.push_back({std::move(order), clock_.Now(), {}});
    CarryOut();
  }
  void Retire(SpillRetire) override { CHECK(false); }  // there is always room
  bool Cancel(SpillTicket ticket) override {
    CarryOut();
    return std::erase_if(reads_, [&](const Pending& read) {
             return read.order.ticket == ticket && !read.end;
           }) > 0;
  }
  std::vector<SpillCompletion> Poll() override {
    CarryOut();
    return std::exchange(done_, {});
  }
  std::vector<SpillTicket> TakeReturned() override { return {}; }

  SpillStats stats() const override {
    return {.quota_bytes = uint64_t{1} << 40,
            .used_bytes = records_.size() * block_bytes_,
            .segment_bytes = 4 * block_bytes_,
            .record_bytes = block_bytes_,
            .segment_count = 1};
  }

 private:
  struct Pending {
    SpillRead order;
    Clock::Monotonic ordered;
    std::optional<Clock::Monotonic> end;  // of one that has begun
  };

  // What has begun and ended by now.
  void CarryOut() {
    while (!reads_.empty()) {
      Pending& read = reads_.front();
      if (!read.end) {
        const Clock::Monotonic begin = std::max(read.ordered, free_since_);
        begun_.push_back({read.order.block, begin});
        read.end = begin + read_time(read.order.block);
      }
      if (*read.end > clock_.Now()) return;
      const std::vector<std::byte>& bytes = records_.at(read.order.record);
      std::memcpy(read.order.payload.data(), bytes.data(), bytes.size());
      done_.push_back(
          {.ticket = read.order.ticket, .time = *read.end - begun_.back().at, .ended = *read.end});
      free_since_ = *read.end;
      reads_.pop_front();
    }
  }

  const FakeClock& clock_;
  const size_t block_bytes_;
  std::map<RecordId, std::vector<std::byte>> records_;
  uint64_t next_record_ = 1;
  std::deque<Pending> reads_;  // the first one has begun
  Clock::Monotonic free_since_;
  std::vector<Begun> begun_;
  std::vector<SpillCompletion> done_;
};

}  // namespace cairn
