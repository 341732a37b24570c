#include "offload/segment_ledger.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr uint64_t kRecordBytes = 100;
constexpr uint64_t kQuotaBytes = kDatabaseBytesMax + 1000;

SegmentFile File(uint64_t first, uint64_t last, uint64_t bytes, bool foreign = false) {
  return {.id = SegmentId(first), .last = RecordId(last), .file_bytes = bytes, .foreign = foreign};
}

TEST(SegmentLedger, ReservesAsMuchAsFits) {
  SegmentLedger ledger(kQuotaBytes, kRecordBytes);
  EXPECT_EQ(ledger.used_bytes(), kDatabaseBytesMax);
  EXPECT_EQ(ledger.Reserve(7), 7u);
  EXPECT_EQ(ledger.Reserve(7), 3u);
  EXPECT_FALSE(ledger.has_room());
  EXPECT_EQ(ledger.used_bytes(), kQuotaBytes);
  ledger.Release(1);
  EXPECT_TRUE(ledger.has_room());
  EXPECT_EQ(ledger.Reserve(2), 1u);
}

TEST(SegmentLedger, ASegmentTakesThePlaceOfItsRecords) {
  SegmentLedger ledger(kQuotaBytes, kRecordBytes);
  ledger.Reserve(5);
  ledger.Add(File(1, 4, 350), 4);
  EXPECT_EQ(ledger.used_bytes(), kDatabaseBytesMax + 350 + 100);
  EXPECT_EQ(ledger.segment_count(), 1u);
  ledger.BeginRetire(SegmentId(1));
  EXPECT_EQ(ledger.used_bytes(), kDatabaseBytesMax + 350 + 100);  // until it has gone
  ledger.EndRetire(SegmentId(1), true);
  EXPECT_EQ(ledger.used_bytes(), kDatabaseBytesMax + 100);
}

TEST(SegmentLedger, MoreThanTheQuotaLeavesNoRoom) {
  SegmentLedger ledger(kQuotaBytes, kRecordBytes);
  ledger.Install({File(1, 4, 5000)});
  EXPECT_EQ(ledger.Reserve(1), 0u);
  EXPECT_FALSE(ledger.has_room());
}

TEST(SegmentLedger, TheOldestIsTheFirstThatIsNotBeingRetired) {
  SegmentLedger ledger(kQuotaBytes, kRecordBytes);
  EXPECT_EQ(ledger.Oldest(), SegmentId());
  ledger.Install({File(5, 7, 10), File(1, 4, 10, true), File(9, 9, 10)});
  EXPECT_EQ(ledger.foreign_count(), 1u);
  EXPECT_EQ(ledger.Oldest(), SegmentId(1));
  ledger.BeginRetire(SegmentId(1));
  EXPECT_EQ(ledger.Oldest(), SegmentId(5));
  ledger.EndRetire(SegmentId(1), false);
  EXPECT_EQ(ledger.Oldest(), SegmentId(1));
}

TEST(SegmentLedger, ReadsAreCountedWhereTheirRecordLies) {
  SegmentLedger ledger(kQuotaBytes, kRecordBytes);
  ledger.Install({File(1, 4, 10), File(9, 12, 10)});
  for (const uint64_t nowhere : {0, 5, 8, 13}) ledger.BeginRead(RecordId(nowhere));
  EXPECT_FALSE(ledger.is_read(SegmentId(1)) || ledger.is_read(SegmentId(9)));
  ledger.BeginRead(RecordId(4));
  ledger.BeginRead(RecordId(9));
  ledger.BeginRead(RecordId(12));
  ledger.EndRead(RecordId(9));
  EXPECT_TRUE(ledger.is_read(SegmentId(1)) && ledger.is_read(SegmentId(9)));
  ledger.EndRead(RecordId(12));
  EXPECT_FALSE(ledger.is_read(SegmentId(9)));
  // What is known of a segment outlives that it is found again.
  ledger.Install({File(1, 4, 10)});
  EXPECT_TRUE(ledger.is_read(SegmentId(1)));
  ledger.EndRead(RecordId(4));
  EXPECT_FALSE(ledger.is_read(SegmentId(1)));
}

}  // namespace
}  // namespace cairn
