#include "offload/block_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "offload/segment_contents.h"
#include "tests/fakes/spill_driver.h"

namespace cairn {
namespace {

const RecordOrigin kOrigin = OriginOf({3, 4}, "L2.H1.D8.T16.f16.kdt.test");

std::vector<std::byte> Bytes(const EncodedRecord& record) {
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  add(std::as_bytes(std::span(record.header)));
  add(record.payload);
  add(record.digest);
  return bytes;
}

std::vector<std::byte> SomeRecord(uint32_t token_count, size_t payload_bytes) {
  const auto payload = NumberedPayload(5, payload_bytes);
  return Bytes(EncodeRecord(kOrigin, NumberedBlock(5, token_count), payload));
}

// The digest is made to fit again, so that only the structure is wrong.
std::vector<std::byte> WithField(std::vector<std::byte> bytes, size_t offset, uint32_t value) {
  std::memcpy(&bytes[offset], &value, sizeof value);
  const auto covered = std::span(bytes).first(bytes.size() - sizeof(Digest));
  const Digest digest = DigestOf(covered);
  std::memcpy(&bytes[covered.size()], &digest, sizeof digest);
  return bytes;
}

TEST(BlockRecord, ComesBackAsItWas) {
  for (const uint32_t token_count : {1u, 6u, 7u, 16u, 64u}) {
    for (const size_t payload_bytes : {0u, 8u, 4096u}) {
      const auto payload = NumberedPayload(9, payload_bytes);
      const BlockIdentity block = NumberedBlock(9, token_count);
      const auto bytes = Bytes(EncodeRecord(kOrigin, block, payload));
      EXPECT_EQ(bytes.size(), RecordBytes(token_count, payload_bytes));
      const auto record = DecodeRecord(bytes);
      ASSERT_TRUE(record.ok()) << record.status().ToString();
      EXPECT_EQ(record->header.block, block);
      EXPECT_EQ(record->header.origin, kOrigin);
      EXPECT_EQ(record->header.header_bytes % 64, 0u);
      EXPECT_TRUE(std::equal(record->payload.begin(), record->payload.end(), payload.begin(),
                             payload.end()));
      EXPECT_TRUE(ExpectRecord(record->header, kOrigin, block).ok());
    }
  }
}

// What is written today must be read by every later program: these bytes may never change without
// a new version.
TEST(BlockRecord, BytesArePinned) {
  BlockIdentity block;
  block.key.digest = {0x1111111111111111, 0x2222222222222222};
  block.parent.digest = {0x3333333333333333, 0x4444444444444444};
  block.first_position = 32;
  block.tokens = {7, 8};
  const auto bytes = Bytes(EncodeRecord({{1, 2}, {3, 4}}, block, NumberedPayload(1, 64)));
  ASSERT_EQ(bytes.size(), 128u + 64 + 16);
  EXPECT_EQ(
      std::memcmp(bytes.data(), "CairnKVB\x04\x03\x02\x01\x01\0\0\0\x80\0\0\0\0\0\0\0\x20", 25), 0);
  EXPECT_EQ(DigestOf(bytes).ToHex(), "0bfff8129b33c52c12b086f7e9efabf6");
}

TEST(BlockRecord, EveryFlippedBitIsFound) {
  const auto intact = SomeRecord(2, 64);
  for (size_t bit = 0; bit < intact.size() * 8; ++bit) {
    auto bytes = intact;
    bytes[bit / 8] ^= std::byte{static_cast<uint8_t>(1 << bit % 8)};
    EXPECT_EQ(DecodeRecord(bytes).status().code(), Code::kDataLoss) << bit;
  }
}

TEST(BlockRecord, EveryOtherLengthIsFound) {
  const auto intact = SomeRecord(2, 64);
  for (size_t size = 0; size < intact.size(); ++size) {
    EXPECT_EQ(DecodeRecord(std::span(intact).first(size)).status().code(), Code::kDataLoss) << size;
  }
  auto longer = intact;
  longer.push_back(std::byte{0});
  EXPECT_EQ(DecodeRecord(longer).status().message(),
            "record: has 81 bytes after its header, not 64 and a digest");
}

TEST(BlockRecord, SaysWhatIsWrong) {
  const auto intact = SomeRecord(2, 64);
  const auto message = [](std::span<const std::byte> bytes) {
    return DecodeRecord(bytes).status().message();
  };
  EXPECT_EQ(message(std::span(intact).first(50)), "record: has 50 bytes, a header at least 104");
  EXPECT_EQ(message(WithField(intact, 0, 0)),
            "record: magic is 000000006e4b5642, not 436169726e4b5642");
  EXPECT_EQ(message(WithField(intact, 8, 0x04030201)),
            "record: byte order is 67305985, not 16909060");
  EXPECT_EQ(message(WithField(intact, 12, 2)), "record: format version is 2, not 1");
  EXPECT_EQ(message(WithField(intact, 16, 64)), "record: header size is 64, not 128");
  EXPECT_EQ(message(WithField(intact, 20, 1)), "record: codec is 1, not 0");
  EXPECT_EQ(message(WithField(intact, 28, 0)), "record: token count is 0, not 1 to 64");
  EXPECT_EQ(message(WithField(intact, 28, 65)), "record: token count is 65, not 1 to 64");
  EXPECT_EQ(message(WithField(intact, 96, 65)),
            "record: has 80 bytes after its header, not 65 and a digest");
  EXPECT_EQ(message(WithField(intact, 100, UINT32_MAX)),
            "record: has 80 bytes after its header, not 18446744069414584384 and a digest");
}

TEST(BlockRecord, IsOfItsBlockAndOrigin) {
  const auto bytes = SomeRecord(2, 64);
  const RecordHeader header = DecodeRecord(bytes)->header;
  const auto message = [&](const RecordOrigin& origin, const BlockIdentity& block) {
    const Status status = ExpectRecord(header, origin, block);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    return status.message();
  };
  const BlockIdentity block = NumberedBlock(5, 2);
  EXPECT_EQ(message({{3, 5}, kOrigin.layout}, block),
            "record: model fingerprint is 00000000000000030000000000000004, not "
            "00000000000000030000000000000005");
  EXPECT_THAT(message({kOrigin.fingerprint, {}}, block), testing::StartsWith("record: layout is "));
  BlockIdentity other = block;
  other.key.digest.low ^= 1;
  EXPECT_THAT(message(kOrigin, other), testing::StartsWith("record: key is "));
  other = block;
  other.parent.digest.high ^= 1;
  EXPECT_THAT(message(kOrigin, other), testing::StartsWith("record: parent is "));
  other = block;
  other.first_position = 11;
  EXPECT_EQ(message(kOrigin, other), "record: first position is 10, not 11");
  other = block;
  ++other.tokens.back();
  EXPECT_EQ(message(kOrigin, other), "record: token ids are not those of its block");
}

SegmentContents SomeContents() {
  SegmentContents contents{kOrigin, {}};
  for (uint64_t i = 0; i < 3; ++i) {
    contents.records.emplace_back(RecordId(10 + 2 * i), NumberedBlock(i, 2 + i));
  }
  return contents;
}

TEST(SegmentContents, ComeBackAsTheyWere) {
  const SegmentContents contents = SomeContents();
  const auto parsed = ParseContents(EncodeContents(contents));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, contents);
}

TEST(SegmentContents, DamageIsFoundAndAnotherVersionIsNotDamage) {
  const std::string intact = EncodeContents(SomeContents());
  for (size_t bit = 0; bit < intact.size() * 8; ++bit) {
    std::string bytes = intact;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_EQ(ParseContents(bytes).status().code(),
              bit < 32 ? Code::kUnimplemented : Code::kDataLoss)
        << bit;
  }
  for (size_t size = 0; size < intact.size(); ++size) {
    EXPECT_EQ(ParseContents(intact.substr(0, size)).status().code(), Code::kDataLoss) << size;
  }
  SegmentContents unordered = SomeContents();
  unordered.records[2].first = unordered.records[1].first;
  EXPECT_EQ(ParseContents(EncodeContents(unordered)).status().message(),
            "table of contents: record ids do not increase");
  EXPECT_EQ(ParseContents(EncodeContents({kOrigin, {}})).status().message(),
            "table of contents: 0 records in 0 bytes");
}

}  // namespace
}  // namespace cairn
