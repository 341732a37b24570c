// Tiers that take as long as they are told to, by a clock that the test moves: a disk that does one
// thing after the other, reads first, and a device whose copies between its pools take their time.
// No byte matters here, only when. Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/cpu_device.h"
#include "offload/spill_store.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/forwarding_device.h"

namespace cairn {

struct TimedDiskOptions {
  std::chrono::nanoseconds read_time{0};  // of a block
  std::chrono::nanoseconds write_time{0};
  uint64_t quota_blocks = 0;
  uint64_t segment_blocks = 16;
};

class TimedSpillStore final : public SpillStore {
 public:
  TimedSpillStore(const TimedDiskOptions& options, const FakeClock& clock, uint64_t block_bytes)
      : options_(options), clock_(clock), block_bytes_(block_bytes) {}

  std::vector<FoundRecord> TakeFound() override { return {}; }
  SegmentId OldestSegment() const override {
    return segments_.empty() ? SegmentId() : segments_.begin()->first;
  }

  void Write(SpillWrite order) override {
    Run();
    if (used_blocks_ + 1 > options_.quota_blocks) {
      done_.push_back({.ticket = order.ticket,
                       .status = Status(Code::kResourceExhausted, "the quota is used up")});
      return;
    }
    if (groups_.empty() || groups_.back().is_closed) groups_.emplace_back();
    ++used_blocks_;
    Group& group = groups_.back();
    group.waiting.push_back(order.ticket);
    group.is_closed = ++group.size == options_.segment_blocks;
    Start(clock_.Now());
  }

  void Close() override {
    Run();
    if (!groups_.empty()) groups_.back().is_closed = true;
    EndGroups();
  }

  void Read(SpillRead order) override {
    Run();
    reads_.push_back(order.ticket);
    Start(clock_.Now());
  }

  void Retire(SpillRetire order) override {
    Run();
    retirements_.push_back(std::move(order));
    Start(clock_.Now());
  }

  bool Cancel(SpillTicket ticket) override {
    Run();
    if (std::erase(reads_, ticket) > 0) return true;
    for (Group& group : groups_) {
      if (std::erase(group.waiting, ticket) == 0) continue;
      --group.size;
      --used_blocks_;
      EndGroups();
      return true;
    }
    return false;
  }

  std::vector<SpillCompletion> Poll() override {
    Run();
    return std::exchange(done_, {});
  }

  std::vector<SpillTicket> TakeReturned() override { return {}; }

  SpillStats stats() const override {
    return {.quota_bytes = options_.quota_blocks * block_bytes_,
            .used_bytes = used_blocks_ * block_bytes_,
            .segment_bytes = options_.segment_blocks * block_bytes_,
            .record_bytes = block_bytes_,
            .segment_count = segments_.size()};
  }

 private:
  using Time = Clock::Monotonic;
  enum class Kind { kRead, kWrite, kRetire };
  struct Current {
    Kind kind;
    SpillTicket ticket;
    Time end;
  };
  struct Group {  // becomes a segment
    std::deque<SpillTicket> waiting;
    std::vector<SpillTicket> written;
    uint64_t size = 0;  // of both, and of the one that is being written
    bool is_closed = false;
  };

  // Everything that is over by now ends, and what comes next begins when the one before ended.
  void Run() {
    while (current_ && current_->end <= clock_.Now()) {
      const Current ended = *std::exchange(current_, std::nullopt);
      End(ended);
      Start(ended.end);
      idle_since_ = ended.end;
    }
    if (!current_ && !groups_.empty() && clock_.Now() - idle_since_ >= kIdleClose) {
      groups_.back().is_closed = true;
      EndGroups();
    }
  }

  void Start(Time begin) {
    if (current_) return;
    if (!reads_.empty()) {
      current_ = {Kind::kRead, reads_.front(), begin + options_.read_time};
      reads_.pop_front();
      return;
    }
    for (Group& group : groups_) {
      if (group.waiting.empty()) continue;
      current_ = {Kind::kWrite, group.waiting.front(), begin + options_.write_time};
      return group.waiting.pop_front();
    }
    if (retirements_.empty()) return;
    const auto moved = static_cast<int64_t>(retirements_.front().keep.size());
    current_ = {Kind::kRetire, retirements_.front().ticket,
                begin + moved * (options_.read_time + options_.write_time)};
  }

  void End(const Current& ended) {
    if (ended.kind == Kind::kRead) {
      done_.push_back({.ticket = ended.ticket, .time = options_.read_time, .ended = ended.end});
    } else if (ended.kind == Kind::kWrite) {
      const auto group = std::ranges::find_if(
          groups_, [](const Group& one) { return one.written.size() < one.size; });
      group->written.push_back(ended.ticket);
      EndGroups();
    } else {
      EndRetirement();
    }
  }

  void EndGroups() {
    while (!groups_.empty()) {
      const Group& group = groups_.front();
      if (!group.is_closed || group.written.size() < group.size) return;
      const SegmentId segment(next_record_);
      for (const SpillTicket ticket : group.written) {
        const RecordId record(next_record_++);
        segments_[segment].insert(record);
        done_.push_back(
            {.ticket = ticket, .record = record, .segment = segment, .time = options_.write_time});
      }
      groups_.pop_front();
    }
  }

  void EndRetirement() {
    const SpillRetire order = std::move(retirements_.front());
    retirements_.pop_front();
    SpillCompletion done{.ticket = order.ticket};
    const auto retired = segments_.find(order.segment);
    CHECK(retired != segments_.end());
    used_blocks_ -= retired->second.size() - order.keep.size();
    segments_.erase(retired);
    const SegmentId segment(next_record_);
    for (const RecordId from : order.keep) {
      const RecordId to(next_record_++);
      segments_[segment].insert(to);
      done.moved.push_back({from, to, segment});
    }
    done_.push_back(std::move(done));
  }

  static constexpr std::chrono::seconds kIdleClose{1};

  const TimedDiskOptions options_;
  const FakeClock& clock_;
  const uint64_t block_bytes_;
  std::deque<SpillTicket> reads_;
  std::deque<Group> groups_;
  std::deque<SpillRetire> retirements_;
  std::optional<Current> current_;
  Time idle_since_;
  std::map<SegmentId, std::set<RecordId>> segments_;  // closed
  uint64_t next_record_ = 1;
  uint64_t used_blocks_ = 0;  // in segments, and on their way
  std::vector<SpillCompletion> done_;
};

class TimedDevice final : public ForwardingDevice {
 public:
  // `tells_time`: its events say how long copies took.
  TimedDevice(uint64_t memory_bytes, std::chrono::nanoseconds copy_time, const FakeClock& clock,
              bool tells_time = false)
      : ForwardingDevice(MakeCpuDevice({.backend = "cpu", .memory_bytes = memory_bytes})),
        copy_time_(copy_time),
        clock_(clock),
        tells_time_(tells_time) {}

  Result<std::unique_ptr<Stream>> NewStream(StreamUse /*use*/) override {
    return std::unique_ptr<Stream>(std::make_unique<TimedStream>(copy_time_, clock_, tells_time_));
  }

 private:
  class TimedEvent final : public Event {
   public:
    TimedEvent(Clock::Monotonic end, const FakeClock& clock, bool tells_time)
        : end_(end), clock_(clock), tells_time_(tells_time) {}
    bool Passed() const override { return clock_.Now() >= end_; }
    Status Wait() override { return Status(); }
    double SecondsSince(const Event& earlier) const override {
      if (!tells_time_) return 0;
      return std::chrono::duration<double>(end_ - static_cast<const TimedEvent&>(earlier).end_)
          .count();
    }

   private:
    const Clock::Monotonic end_;
    const FakeClock& clock_;
    const bool tells_time_;
  };

  class TimedStream final : public Stream {
   public:
    TimedStream(std::chrono::nanoseconds copy_time, const FakeClock& clock, bool tells_time)
        : copy_time_(copy_time), clock_(clock), tells_time_(tells_time) {}
    EventRef Record() override {
      return std::make_shared<TimedEvent>(std::max(busy_until_, clock_.Now()), clock_, tells_time_);
    }
    void Wait(const EventRef& /*event*/) override {}
    void Copy(void* /*destination*/, const void* /*source*/, size_t /*size_bytes*/) override {
      busy_until_ = std::max(busy_until_, clock_.Now()) + copy_time_;
    }
    void Clear(void* /*destination*/, size_t /*size_bytes*/) override {}
    Status Synchronize() override { return Status(); }

   private:
    const std::chrono::nanoseconds copy_time_;
    const FakeClock& clock_;
    const bool tells_time_;
    Clock::Monotonic busy_until_;
  };

  const std::chrono::nanoseconds copy_time_;
  const FakeClock& clock_;
  const bool tells_time_;
};

}  // namespace cairn
