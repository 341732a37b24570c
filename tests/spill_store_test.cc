// What a user of the disk tier can rely on, on real files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "offload/rocksdb_segments.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

using Kind = SpillDriver::Ended::Kind;

constexpr size_t kBlockBytes = 1024;

class SpillStoreTest : public testing::Test {
 protected:
  SpillStoreConfig Config() const {
    return {.directory = folder_.path() + "/spill",
            .quota_bytes = 8 << 20,
            .segment_bytes = 64 << 10,
            .idle_close = std::chrono::hours(1)};
  }

  const ScratchFolder folder_;
  const KvLayout layout_ = LayoutOf(kBlockBytes);
};

TEST_F(SpillStoreTest, BytesComeBack) {
  SpillDriver driver(Config(), layout_);
  const auto written = driver.WriteAll(100, 5);
  ASSERT_EQ(written.size(), 5u);
  for (size_t i = 0; i < written.size(); ++i) {
    const auto& [status, record, segment] = std::tie(
        written[i].completion.status, written[i].completion.record, written[i].completion.segment);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(written[i].number, 100 + i);
    EXPECT_EQ(record.value(), segment.value() + i);  // named after its first record
    const auto read = driver.ReadOne(record, 100 + i);
    EXPECT_TRUE(read.completion.status.ok()) << read.completion.status.ToString();
    EXPECT_TRUE(read.intact);
  }
  EXPECT_EQ(driver.store().stats().segment_count, 1u);
  EXPECT_EQ(driver.store().OldestSegment(), written[0].completion.segment);
}

TEST_F(SpillStoreTest, IsFoundAgain) {
  std::vector<FoundRecord> expected;
  {
    SpillDriver driver(Config(), layout_);
    EXPECT_TRUE(driver.found().empty());
    for (const uint64_t first : {0, 10}) {
      for (const auto& ended : driver.WriteAll(first, 3)) {
        expected.push_back({ended.completion.record, ended.completion.segment,
                            NumberedBlock(ended.number, layout_.block_tokens)});
      }
    }
  }
  SpillDriver driver(Config(), layout_);
  ASSERT_EQ(driver.found().size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(driver.found()[i].record, expected[i].record);
    EXPECT_EQ(driver.found()[i].segment, expected[i].segment);
    EXPECT_EQ(driver.found()[i].block, expected[i].block);
    EXPECT_TRUE(driver.ReadOne(expected[i].record, NumberOf(expected[i].block)).intact);
  }
  EXPECT_EQ(driver.store().stats().segment_count, 2u);
  EXPECT_TRUE(driver.store().TakeFound().empty());  // once
}

TEST_F(SpillStoreTest, WhatWasWrittenIsFoundAlsoWhenTheSegmentWasOpen) {
  {
    SpillDriver driver(Config(), layout_);
    driver.WriteAll(0, 1);
    driver.Write(1);
    // A retirement that keeps something shows that the write before it has begun.
    driver.Retire(driver.store().OldestSegment(), {});
    driver.Wait(1);
  }
  SpillDriver driver(Config(), layout_);
  ASSERT_EQ(driver.found().size(), 1u);
  EXPECT_EQ(NumberOf(driver.found()[0].block), 1u);
}

TEST_F(SpillStoreTest, ASegmentIsClosedWhenItIsFull) {
  SpillDriver driver(Config(), layout_);
  const uint64_t per_segment = (64 << 10) / kBlockBytes;  // at most
  for (uint64_t i = 0; i < 2 * per_segment; ++i) driver.Write(i);
  const auto ended = driver.Wait(per_segment / 2);
  EXPECT_TRUE(ended[0].completion.status.ok());
  EXPECT_NE(ended[0].completion.segment, SegmentId());
  driver.store().Close();
  driver.WaitForAll();
  for (const auto& file : FilesBelow(Config().directory, ".sst")) {
    EXPECT_LE(std::filesystem::file_size(file), 64u << 10);
  }
}

TEST_F(SpillStoreTest, AnIdleSegmentIsClosed) {
  SpillStoreConfig config = Config();
  config.idle_close = std::chrono::milliseconds(1);
  SpillDriver driver(config, layout_);
  driver.Write(7);
  EXPECT_TRUE(driver.Wait(1).front().completion.status.ok());
}

TEST_F(SpillStoreTest, IdsGrowAlsoWhenTheNewestSegmentIsGone) {
  RecordId largest(0);
  for (int round = 0; round < 3; ++round) {
    SpillDriver driver(Config(), layout_);
    EXPECT_TRUE(driver.found().empty());
    for (const auto& ended : driver.WriteAll(0, 3)) {
      EXPECT_GT(ended.completion.record, largest);
      largest = ended.completion.record;
    }
    ASSERT_TRUE(driver.RetireOne(driver.store().OldestSegment()).completion.status.ok());
  }
}

TEST_F(SpillStoreTest, RetireKeepsWhatItIsAskedTo) {
  SpillDriver driver(Config(), layout_);
  const auto written = driver.WriteAll(0, 4);
  const SegmentId segment = written[0].completion.segment;
  const uint64_t used = driver.store().stats().used_bytes;
  const auto retired =
      driver.RetireOne(segment, {written[1].completion.record, written[3].completion.record});
  ASSERT_TRUE(retired.completion.status.ok()) << retired.completion.status.ToString();
  const auto& moved = retired.completion.moved;
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].from, written[1].completion.record);
  EXPECT_EQ(moved[1].from, written[3].completion.record);
  EXPECT_GT(moved[0].to, written[3].completion.record);
  EXPECT_TRUE(driver.ReadOne(moved[0].to, 1).intact);
  EXPECT_TRUE(driver.ReadOne(moved[1].to, 3).intact);
  EXPECT_EQ(driver.store().OldestSegment(), moved[0].segment);
  EXPECT_EQ(driver.store().stats().segment_count, 1u);
  EXPECT_LE(driver.store().stats().used_bytes, used);
  // The old ones are gone, file and all.
  EXPECT_EQ(driver.ReadOne(written[1].completion.record, 1).completion.status.code(),
            Code::kDataLoss);
  EXPECT_EQ(FilesBelow(Config().directory, ".sst").size(), 1u);
}

TEST_F(SpillStoreTest, RetiringWhatIsGoneIsNoError) {
  SpillDriver driver(Config(), layout_);
  const auto written = driver.WriteAll(0, 1);
  const SegmentId segment = written[0].completion.segment;
  for (int i = 0; i < 2; ++i) {
    const auto retired = driver.RetireOne(segment, {written[0].completion.record});
    EXPECT_TRUE(retired.completion.status.ok()) << retired.completion.status.ToString();
    EXPECT_EQ(retired.completion.moved.size(), i == 0 ? 1u : 0u);
  }
}

TEST_F(SpillStoreTest, ASegmentThatIsBeingRetiredIsNotTheOldest) {
  SpillDriver driver(Config(), layout_);
  const SegmentId first = driver.WriteAll(0, 2)[0].completion.segment;
  const SegmentId second = driver.WriteAll(2, 2)[0].completion.segment;
  driver.Retire(first, {});
  EXPECT_EQ(driver.store().OldestSegment(), second);
  driver.WaitForAll();
  EXPECT_EQ(driver.store().OldestSegment(), second);
}

TEST_F(SpillStoreTest, ReadsThatWereOrderedBeforeARetirementSucceed) {
  SpillDriver driver(Config(), layout_);
  const SegmentId first = driver.WriteAll(0, 20)[0].completion.segment;
  const SegmentId second = driver.WriteAll(20, 20)[0].completion.segment;
  // Reads of the second segment also see the files of the first, as long as they take.
  for (const uint64_t segment : {first.value(), second.value()}) {
    for (uint64_t i = 0; i < 20; ++i) {
      driver.Read(RecordId(segment + i), segment == first.value() ? i : 20 + i);
    }
  }
  driver.Retire(first, {});
  size_t intact = 0;
  for (const auto& ended : driver.WaitForAll()) {
    EXPECT_TRUE(ended.completion.status.ok()) << ended.completion.status.ToString();
    intact += ended.intact;
  }
  EXPECT_EQ(intact, 40u);
  EXPECT_EQ(FilesBelow(Config().directory, ".sst").size(), 1u);
}

TEST_F(SpillStoreTest, TheQuotaRefusesAndRetirementMakesRoom) {
  SpillStoreConfig config = Config();
  config.quota_bytes = kDatabaseBytesMax + (256 << 10);
  SpillDriver driver(config, layout_);
  uint64_t stored = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    for (const auto& ended : driver.WriteAll(i, 1)) stored += ended.completion.status.ok();
  }
  const SpillStats full = driver.store().stats();
  EXPECT_LT(stored, 300u);
  EXPECT_GT(stored, 10u);
  EXPECT_LE(full.used_bytes, config.quota_bytes);
  EXPECT_GT(full.used_bytes + full.record_bytes, config.quota_bytes);
  const auto refused = driver.WriteAll(0, 1)[0].completion.status;
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "disk tier: the quota of " + std::to_string(config.quota_bytes) + " bytes is used");
  for (int i = 0; i < 4; ++i) driver.RetireOne(driver.store().OldestSegment());
  EXPECT_TRUE(driver.WriteAll(0, 1)[0].completion.status.ok());
}

TEST_F(SpillStoreTest, ASmallerQuotaDropsTheOldest) {
  uint64_t used = 0;
  {
    SpillDriver driver(Config(), layout_);
    for (uint64_t i = 0; i < 20; ++i) driver.WriteAll(10 * i, 10);
    used = driver.store().stats().used_bytes;
  }
  SpillStoreConfig config = Config();
  config.quota_bytes = (used + kDatabaseBytesMax) / 2;
  SpillDriver driver(config, layout_);
  EXPECT_LE(driver.store().stats().used_bytes, config.quota_bytes);
  ASSERT_EQ(driver.found().size(), 100u);
  EXPECT_EQ(NumberOf(driver.found()[0].block), 100u);
}

TEST_F(SpillStoreTest, WhatHasNotBegunCanBeCancelled) {
  SpillStoreConfig config = Config();
  config.bandwidth_limit =
      1;  // the first operation goes, the next one would have to wait for hours
  uint64_t used = 0;
  {
    SpillDriver driver(config, layout_);
    const SpillTicket first = driver.Write(0), second = driver.Write(1), third = driver.Write(2);
    EXPECT_TRUE(driver.Cancel(third));
    EXPECT_FALSE(driver.Cancel(third));
    used = driver.store().stats().used_bytes;
    // The first may have begun, and the second may be waiting for the budget by now.
    driver.Cancel(first);
    driver.Cancel(second);
    EXPECT_LE(driver.store().stats().used_bytes, used);
  }
  SpillDriver driver(Config(), layout_);
  for (const auto& found : driver.found()) EXPECT_NE(NumberOf(found.block), 2u);
}

TEST_F(SpillStoreTest, ReadsBeginInOrderAndThoseThatTheLimitHoldsBackCanBeCancelled) {
  constexpr uint64_t kReads = 8;
  std::vector<SpillDriver::Ended> written;
  {
    SpillDriver driver(Config(), layout_);
    written = driver.WriteAll(1, kReads);
  }
  SpillStoreConfig config = Config();
  config.bandwidth_limit = 1;  // after the first one nothing may move for hours
  SpillDriver driver(config, layout_);
  std::vector<SpillTicket> tickets;
  tickets.reserve(kReads);
  for (const SpillDriver::Ended& one : written) {
    tickets.push_back(driver.Read(one.completion.record, one.number));
  }
  const std::vector<SpillDriver::Ended> ended = driver.Wait(1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].number, written[0].number);
  EXPECT_TRUE(ended[0].intact);
  EXPECT_FALSE(driver.Cancel(tickets[0]));
  for (uint64_t i = 1; i < kReads; ++i) EXPECT_TRUE(driver.Cancel(tickets[i])) << i;
  EXPECT_EQ(driver.outstanding(), 0u);
}

TEST_F(SpillStoreTest, AWriteThatIsInTheOpenSegmentHasBegun) {
  SpillDriver driver(Config(), layout_);
  const auto old = driver.WriteAll(0, 1);
  const SpillTicket ticket = driver.Write(1);
  driver.Retire(old[0].completion.segment, {});
  driver.Wait(1);  // orders run in turn, so the write has been run
  EXPECT_FALSE(driver.Cancel(ticket));
  driver.store().Close();
  EXPECT_TRUE(driver.WaitForAll()[0].completion.status.ok());
}

TEST_F(SpillStoreTest, AnotherBlocksRecordIsNotServed) {
  SpillDriver driver(Config(), layout_);
  const auto written = driver.WriteAll(0, 2);
  const auto read = driver.ReadOne(written[0].completion.record, 1);
  EXPECT_EQ(read.completion.status.code(), Code::kDataLoss);
  EXPECT_THAT(read.completion.status.message(), testing::StartsWith("record: key is "));
}

TEST_F(SpillStoreTest, ForeignSegmentsAreLeftAloneUntilTheyAge) {
  SegmentId foreign;
  {
    SpillDriver driver(Config(), layout_, {7, 7});
    foreign = driver.WriteAll(0, 3)[0].completion.segment;
  }
  {
    SpillDriver driver(Config(), layout_);
    EXPECT_TRUE(driver.found().empty());
    EXPECT_EQ(driver.store().stats().foreign_segments, 1u);
    const auto own = driver.WriteAll(10, 1);
    EXPECT_EQ(driver.store().OldestSegment(), foreign);
    const auto read = driver.ReadOne(RecordId(foreign.value()), 0);
    EXPECT_THAT(read.completion.status.message(), testing::StartsWith("record: model fingerprint"));
  }
  {
    SpillDriver driver(Config(), layout_, {7, 7});  // its owner finds it
    ASSERT_EQ(driver.found().size(), 3u);
    EXPECT_TRUE(driver.ReadOne(driver.found()[2].record, 2).intact);
    EXPECT_EQ(driver.store().stats().foreign_segments, 1u);
  }
  {
    KvLayout other = layout_;
    other.arithmetic = "other";
    SpillDriver driver(Config(), other);
    EXPECT_EQ(driver.store().stats().foreign_segments, 2u);
    ASSERT_TRUE(driver.RetireOne(foreign).completion.status.ok());
    EXPECT_EQ(driver.store().stats().foreign_segments, 1u);
  }
}

TEST_F(SpillStoreTest, WhatCannotBeOpenedIsRefused) {
  const auto refusal = [&](const SpillStoreConfig& config) {
    const auto store = OpenSpillStore(config, {1, 2}, layout_, [] {});
    EXPECT_FALSE(store.ok());
    return store.status();
  };
  SpillStoreConfig config = Config();
  std::ofstream(folder_.path() + "/letter.txt") << "dear";
  config.directory = folder_.path() + "/letter.txt";
  EXPECT_EQ(refusal(config).code(), Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_regular_file(config.directory));
  config.directory = "/proc/cairn";
  EXPECT_EQ(refusal(config).code(), Code::kUnavailable);
  config = Config();
  config.quota_bytes = 1 << 20;
  EXPECT_EQ(refusal(config).ToString(),
            "INVALID_ARGUMENT: disk tier: a quota of 1048576 bytes is too small, at least " +
                std::to_string(kDatabaseBytesMax + config.segment_bytes +
                               2 * RecordFileBytesMax(layout_.block_tokens, kBlockBytes)) +
                " are needed");
}

TEST_F(SpillStoreTest, OneStoreADirectory) {
  SpillDriver driver(Config(), layout_);
  const auto second = OpenSpillStore(Config(), {1, 2}, layout_, [] {});
  EXPECT_FALSE(second.ok());
  EXPECT_TRUE(driver.WriteAll(0, 1)[0].completion.status.ok());
}

TEST_F(SpillStoreTest, TenThousandRecordsAreFoundQuickly) {
  SpillStoreConfig config = Config();
  config.quota_bytes = 256 << 20;
  config.segment_bytes = 256 << 10;  // some 40 segments
  {
    SpillDriver driver(config, layout_);
    driver.WriteAll(0, 10000);
  }
  const auto start = std::chrono::steady_clock::now();
  SpillDriver driver(config, layout_);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(driver.found().size(), 10000u);
  for (uint64_t i = 0; i < 10000; i += 997) EXPECT_EQ(NumberOf(driver.found()[i].block), i);
  RecordProperty("seconds", std::to_string(took.count()));
  EXPECT_LT(took.count(), 2.0);
}

}  // namespace
}  // namespace cairn
