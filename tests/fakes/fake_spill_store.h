// A disk tier in memory, whose every answer comes late, in any order, and sometimes wrong, as a
// seed says. FakeDisk is what outlives the store. It watches its caller: what is being written must
// not change before it is written, and what is being read into must not be touched. Threads: one at
// a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "offload/spill_store.h"
#include "tests/fakes/fake_clock.h"

namespace cairn {

struct FakeDisk {
  struct Record {
    BlockIdentity block;
    std::vector<std::byte> payload;
  };
  struct Segment {
    std::map<RecordId, Record> records;
    bool is_foreign = false;  // of another model: it is not found, and takes room
  };
  std::map<SegmentId, Segment> segments;  // closed
  uint64_t next_record = 1;
};

struct FakeSpillOptions {
  uint64_t seed = 1;
  uint64_t quota_blocks = 1000;
  uint64_t segment_blocks = 4;
  double answer_chance = 0.5;  // that a Poll carries out one more order
  // Chances that an order fails.
  double read_error = 0;
  double corruption = 0;
  double write_error = 0;
  bool hangs = false;         // nothing is answered, and nothing can be cancelled
  uint64_t record_count = 0;  // as it says of itself
  uint64_t bandwidth_limit = 0;
  std::chrono::nanoseconds operation_time{700'000};  // as it says of each
  FakeClock* clock = nullptr;                        // goes on by that time with each read
  uint64_t fails_every =
      0;  // of so many reads one fails, with an error or a wrong checksum in turn
};

class FakeSpillStore final : public SpillStore {
 public:
  FakeSpillStore(FakeDisk& disk, const FakeSpillOptions& initial, size_t block_bytes)
      : options(initial), disk_(disk), rng_(initial.seed), block_bytes_(block_bytes) {}

  FakeSpillOptions options;  // may change at any time

  std::vector<FoundRecord> TakeFound() override {
    std::vector<FoundRecord> found;
    for (const auto& [segment, content] : disk_.segments) {
      if (content.is_foreign) continue;
      for (const auto& [record, copy] : content.records) {
        found.push_back({record, segment, copy.block});
      }
    }
    return found;
  }

  SegmentId OldestSegment() const override {
    return disk_.segments.empty() ? SegmentId() : disk_.segments.begin()->first;
  }

  void Write(SpillWrite order) override {
    if (used_blocks() + 1 > options.quota_blocks) {
      done_.push_back({.ticket = order.ticket,
                       .status = Status(Code::kResourceExhausted, "the quota is used up")});
      return;
    }
    writes_.push_back({order, {order.payload.begin(), order.payload.end()}});
    if (writes_.size() % options.segment_blocks == 0) Close();
  }

  void Close() override { close_at_ = writes_.size(); }

  void Read(SpillRead order) override {
    std::memset(order.payload.data(), kReading, order.payload.size());
    reads_.push_back(std::move(order));
  }

  void Retire(SpillRetire order) override { retirements_.push_back(std::move(order)); }

  bool Cancel(SpillTicket ticket) override {
    ++cancel_count_;
    if (options.hangs || !rng_.Chance(0.7)) return false;
    const size_t closed = close_at_;
    const size_t read_count = std::erase_if(reads_, [&](auto& r) { return r.ticket == ticket; });
    for (size_t i = 0; i < writes_.size(); ++i) {
      if (writes_[i].order.ticket != ticket) continue;
      if (writes_[i].is_returned) return false;  // it has begun
      writes_.erase(writes_.begin() + static_cast<ptrdiff_t>(i));
      close_at_ = closed > i ? closed - 1 : closed;
      return true;
    }
    return read_count > 0;
  }

  std::vector<SpillCompletion> Poll() override {
    while (!options.hangs && rng_.Chance(options.answer_chance) && CarryOutOne()) {
    }
    std::vector<SpillCompletion> out = std::exchange(done_, {});
    for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng_.Below(i)]);
    return out;
  }

  std::vector<SpillTicket> TakeReturned() override { return std::exchange(returned_, {}); }

  SpillStats stats() const override {
    return {.quota_bytes = options.quota_blocks * block_bytes_,
            .used_bytes = used_blocks() * block_bytes_,
            .segment_bytes = options.segment_blocks * block_bytes_,
            .record_bytes = block_bytes_,
            .segment_count = disk_.segments.size(),
            .record_count = options.record_count,
            .bandwidth_limit = options.bandwidth_limit};
  }

  uint64_t cancel_count() const { return cancel_count_; }
  uint64_t failed_count() const { return failed_count_; }
  bool is_idle() const { return reads_.empty() && writes_.empty() && retirements_.empty(); }

 private:
  static constexpr int kReading = 0x5a;
  struct Pending {
    SpillWrite order;
    std::vector<std::byte> payload;
    bool is_returned = false;
    bool is_intact() const {
      return std::memcmp(order.payload.data(), payload.data(), payload.size()) == 0;
    }
  };

  uint64_t used_blocks() const {
    uint64_t count = writes_.size();
    for (const auto& [id, segment] : disk_.segments) count += segment.records.size();
    return count;
  }

  // The first write that asks for it and has its payload still.
  bool ReturnOne() {
    const auto next = std::ranges::find_if(writes_, [](const Pending& pending) {
      return pending.order.returns_payload && !pending.is_returned;
    });
    if (next == writes_.end() || rng_.Chance(0.5)) return false;
    CHECK(next->is_intact());
    next->is_returned = true;
    returned_.push_back(next->order.ticket);
    return true;
  }

  bool CarryOutOne() {
    if (ReturnOne()) return true;
    const uint64_t choice = rng_.Below(3);
    if (choice == 0 && close_at_ > 0) return WriteSegment(), true;
    if (choice == 1 && !retirements_.empty()) return RetireOne(), true;
    if (!reads_.empty()) return ReadOne(), true;
    return close_at_ > 0 || !retirements_.empty();
  }

  // What was ordered before the last Close, as one segment or not at all.
  void WriteSegment() {
    const bool fails = rng_.Chance(options.write_error);
    const SegmentId segment(disk_.next_record);
    for (; close_at_ > 0; --close_at_) {
      Pending pending = std::move(writes_.front());
      writes_.pop_front();
      CHECK(pending.is_returned || pending.is_intact());
      SpillCompletion done{.ticket = pending.order.ticket, .time = options.operation_time};
      if (fails) {
        done.status = Status(Code::kUnavailable, "the disk is full");
      } else {
        done.record = RecordId(disk_.next_record++);
        done.segment = segment;
        disk_.segments[segment].records[done.record] = {pending.order.block,
                                                        std::move(pending.payload)};
      }
      done_.push_back(std::move(done));
    }
  }

  FakeDisk::Record* Find(RecordId record) {
    for (auto& [id, segment] : disk_.segments) {
      const auto found = segment.records.find(record);
      if (found != segment.records.end()) return &found->second;
    }
    return nullptr;
  }

  void ReadOne() {
    const size_t index = rng_.Below(reads_.size());
    SpillRead order = std::move(reads_[index]);
    reads_.erase(reads_.begin() + static_cast<ptrdiff_t>(index));
    for (const std::byte byte : order.payload) CHECK(byte == static_cast<std::byte>(kReading));
    SpillCompletion done{.ticket = order.ticket, .time = options.operation_time};
    if (options.clock != nullptr) {
      options.clock->Advance(options.operation_time);
      done.ended = options.clock->Now();
    }
    const FakeDisk::Record* record = Find(order.record);
    if (record == nullptr) {
      done.status = NotFound("no such record");
    } else if (options.fails_every > 0 && ++read_count_ % options.fails_every == 0) {
      const bool is_damaged = ++failed_count_ % 2 == 0;
      done.status = is_damaged ? Status(Code::kDataLoss, "the checksum is wrong")
                               : Status(Code::kUnavailable, "input/output error");
    } else if (rng_.Chance(options.corruption)) {
      order.payload[rng_.Below(order.payload.size())] ^= std::byte{1};
      done.status = Status(Code::kDataLoss, "the checksum is wrong");
    } else if (rng_.Chance(options.read_error)) {
      done.status = Status(Code::kUnavailable, "input/output error");
    } else {
      CHECK(record->block == order.block);
      std::memcpy(order.payload.data(), record->payload.data(), order.payload.size());
    }
    done_.push_back(std::move(done));
  }

  // The kept records become a segment of their own.
  void RetireOne() {
    SpillRetire order = std::move(retirements_.front());
    retirements_.erase(retirements_.begin());
    SpillCompletion done{.ticket = order.ticket};
    const auto old = disk_.segments.find(order.segment);
    CHECK(old != disk_.segments.end());
    const SegmentId segment(disk_.next_record);
    FakeDisk::Segment moved;
    for (const RecordId record : order.keep) {
      const auto kept = old->second.records.find(record);
      CHECK(kept != old->second.records.end());
      if (rng_.Chance(options.read_error)) continue;
      const RecordId to(disk_.next_record++);
      moved.records[to] = std::move(kept->second);
      done.moved.push_back({record, to, segment});
    }
    disk_.segments.erase(old);
    if (!moved.records.empty()) disk_.segments[segment] = std::move(moved);
    done_.push_back(std::move(done));
  }

  FakeDisk& disk_;
  Rng rng_;
  const size_t block_bytes_;
  std::deque<Pending> writes_;
  size_t close_at_ = 0;  // so many of the writes make a segment
  std::vector<SpillRead> reads_;
  std::vector<SpillRetire> retirements_;
  std::vector<SpillCompletion> done_;
  std::vector<SpillTicket> returned_;
  uint64_t cancel_count_ = 0;  // asked for
  uint64_t read_count_ = 0;
  uint64_t failed_count_ = 0;  // reads that fails_every failed
};

}  // namespace cairn
