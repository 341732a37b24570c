// Random histories of the disk tier beside a model that knows which records there must be. A
// history opens the store anew now and then, also in the middle of what was ordered. One seed
// replays the orders; when they end is up to the threads.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "offload/rocksdb_segments.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

using Ended = SpillDriver::Ended;
using Kind = SpillDriver::Ended::Kind;

class History {
 public:
  explicit History(uint64_t seed) : rng_(seed) { Open(); }

  void Run(int operation_count) {
    for (int i = 0; i < operation_count && !testing::Test::HasFailure(); ++i) {
      Step();
      Take(driver_->Wait(0));
      CheckSpace();
    }
    Settle();
    Reopen();
  }

 private:
  void Step() {
    const uint64_t choice = rng_.Below(100);
    if (choice < 50) {
      for (uint64_t n = rng_.Below(6); n > 0; --n) Write();
    } else if (choice < 75) {
      for (uint64_t n = rng_.Below(6); n > 0; --n) ReadSome();
    } else if (choice < 88) {
      RetireOldest();
    } else if (choice < 92) {
      CancelSome();
    } else if (choice < 96) {
      driver_->store().Close();
    } else if (choice < 98) {
      Settle();
    } else {
      Reopen();
    }
  }

  void Open() {
    driver_ = std::make_unique<SpillDriver>(
        SpillStoreConfig{.directory = folder_.File("spill"),
                         .quota_bytes = kQuotaBytes,
                         .segment_bytes = 24 << 10,
                         .idle_close = std::chrono::milliseconds(1 + rng_.Below(50))},
        LayoutOf(1024));
  }

  void Write() {
    const uint64_t number = next_number_++;
    writes_[driver_->Write(number)] = number;
  }

  void ReadSome() {
    if (records_.empty()) return;
    auto record = records_.begin();
    std::advance(record, rng_.Below(records_.size()));
    const auto& [number, segment] = record->second;
    if (!retiring_.contains(segment)) driver_->Read(record->first, number);
  }

  void RetireOldest() {
    const SegmentId segment = driver_->store().OldestSegment();
    if (!segment.valid()) return;
    std::vector<RecordId> keep;
    for (const auto& [record, place] : records_) {
      if (place.segment == segment && rng_.Chance(0.2)) keep.push_back(record);
    }
    const SpillStats stats = driver_->store().stats();
    keep.resize(std::min(keep.size(), (kQuotaBytes - stats.used_bytes) / stats.record_bytes));
    retiring_[segment] = {keep.begin(), keep.end()};
    driver_->Retire(segment, std::move(keep));
  }

  void CancelSome() {
    for (auto write = writes_.begin(); write != writes_.end();) {
      const bool cancelled = rng_.Chance(0.5) && driver_->Cancel(write->first);
      write = cancelled ? writes_.erase(write) : std::next(write);
    }
  }

  void Settle() {
    driver_->store().Close();
    Take(driver_->WaitForAll());
    EXPECT_EQ(driver_->outstanding(), 0u);
    EXPECT_TRUE(writes_.empty() && retiring_.empty());
    EXPECT_EQ(driver_->store().stats().used_bytes, UsedByFiles());
  }

  // What is stored must be found and nothing else, except for what was under way.
  void Reopen() {
    driver_.reset();
    Open();
    std::set<uint64_t> found_numbers;
    std::map<RecordId, Place> found;
    for (const FoundRecord& record : driver_->found()) {
      const uint64_t number = NumberOf(record.block);
      found_numbers.insert(number);
      found[record.record] = {number, record.segment};
    }
    std::set<uint64_t> possible;
    for (const auto& [ticket, number] : writes_) possible.insert(number);
    for (const auto& [record, place] : records_) {
      possible.insert(place.number);
      const auto retiring = retiring_.find(place.segment);
      if (retiring == retiring_.end()) {
        EXPECT_TRUE(found.contains(record)) << record.value();
      } else if (retiring->second.contains(record)) {
        EXPECT_TRUE(found_numbers.contains(place.number)) << record.value();
      }
    }
    for (const uint64_t number : found_numbers) EXPECT_TRUE(possible.contains(number)) << number;
    writes_.clear();
    retiring_.clear();
    records_ = std::move(found);
    for (const auto& [record, place] : records_) driver_->Read(record, place.number);
    Take(driver_->WaitForAll());
  }

  void Take(std::vector<Ended> all) {
    for (const Ended& ended : all) {
      const SpillCompletion& completion = ended.completion;
      switch (ended.kind) {
        case Kind::kWrite:
          EXPECT_EQ(writes_.erase(completion.ticket), 1u);
          if (completion.status.ok()) {
            EXPECT_TRUE(records_.emplace(completion.record, Place{ended.number, completion.segment})
                            .second);
          } else {
            EXPECT_EQ(completion.status.code(), Code::kResourceExhausted);
          }
          break;
        case Kind::kRead:
          EXPECT_TRUE(completion.status.ok()) << completion.status.ToString();
          EXPECT_TRUE(ended.intact);
          break;
        case Kind::kRetire:
          TakeRetired(ended);
          break;
      }
    }
  }

  void TakeRetired(const Ended& ended) {
    EXPECT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
    const std::set<RecordId> keep = retiring_.at(ended.retired);
    EXPECT_EQ(ended.completion.moved.size(), keep.size());
    for (const auto& moved : ended.completion.moved) {
      EXPECT_TRUE(keep.contains(moved.from));
      records_[moved.to] = {records_.at(moved.from).number, moved.segment};
    }
    std::erase_if(records_, [&](const auto& e) { return e.second.segment == ended.retired; });
    retiring_.erase(ended.retired);
  }

  // Only this thread orders, so nothing grows beyond what is reserved while it counts.
  void CheckSpace() const {
    EXPECT_LE(driver_->store().stats().used_bytes, kQuotaBytes);
    EXPECT_LE(DiskUsage(folder_.File("spill")), kQuotaBytes);
  }

  uint64_t UsedByFiles() const {
    uint64_t used = kDatabaseBytesMax;
    for (const auto& file : FilesBelow(folder_.File("spill"), ".sst")) used += DiskUsage(file);
    return used;
  }

  static constexpr uint64_t kQuotaBytes = kDatabaseBytesMax + (320 << 10);
  struct Place {
    uint64_t number;
    SegmentId segment;
  };

  const ScratchFolder folder_;
  Rng rng_;
  std::unique_ptr<SpillDriver> driver_;
  uint64_t next_number_ = 1;
  std::map<SpillTicket, uint64_t> writes_;            // ordered
  std::map<RecordId, Place> records_;                 // stored
  std::map<SegmentId, std::set<RecordId>> retiring_;  // with what it keeps
};

class SpillStoreModelTest : public testing::TestWithParam<uint64_t> {};

TEST_P(SpillStoreModelTest, RandomHistory) { History(GetParam()).Run(600); }

INSTANTIATE_TEST_SUITE_P(Seeds, SpillStoreModelTest, testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace cairn
