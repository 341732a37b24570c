// The bytes of sessions: what is written is read back, and what is damaged is refused with a
// reason.
#include "engine/session_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/digest.h"
#include "tests/fakes/random_session.h"

namespace cairn {
namespace {

using testing::HasSubstr;

// Gives the record a checksum that is right again.
std::string Sealed(std::string record) {
  record.resize(record.size() - 8);
  const uint64_t checksum = DigestOf(record).low;
  return record.append(reinterpret_cast<const char*>(&checksum), 8);
}

TEST(SessionCodec, ReadsWhatItWrote) {
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {
    const Session session = RandomSession(rng);
    Session read;
    const Status status = DecodeSettings(EncodeSettings(session), read);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const auto progress = DecodeProgress(EncodeProgress(ProgressOf(session)));
    ASSERT_TRUE(progress.ok());
    EXPECT_EQ(*progress, ProgressOf(session));
    ASSERT_TRUE(DecodeTokens(EncodeTokens(session.tokens), read.tokens).ok());
    read.token_digest = progress->token_digest;
    read.computed_token_count = progress->computed_token_count;
    read.update_time = progress->update_time;
    read.last_use_time = progress->last_use_time;
    read.last_use_lived = progress->last_use_lived;
    EXPECT_TRUE(SameSession(read, session));
  }
  const SessionLedger ledger = {.next_serial = 17, .lived = std::chrono::hours(5)};
  EXPECT_EQ(*DecodeLedger(EncodeLedger(ledger)), ledger);
}

// The format is what it was: other servers have written it.
TEST(SessionCodec, WritesTheseBytes) {
  Session session;
  session.id = "ab";
  session.serial = 0x0102;
  session.settings.sampling.top_k = 3;
  session.settings.expiration = std::chrono::nanoseconds(5);
  const std::string record = EncodeSettings(session);
  ASSERT_EQ(record.size(), 103u);
  EXPECT_EQ(record.substr(0, 15), std::string("\1\2\0\0\0ab\2\1\0\0\0\0\0\0", 15));
  EXPECT_EQ(DigestOf(record).ToHex(), "bf3b936c38801d0ad4eca7927e8e16f6");
  EXPECT_EQ(EncodeTokens(std::vector<uint32_t>{1, 0x01020304}), std::string("\1\0\0\0\4\3\2\1", 8));
  EXPECT_EQ(EncodeLedger({}).size(), 25u);
  EXPECT_EQ(EncodeProgress({}).size(), 65u);
}

TEST(SessionCodec, NoByteCanBeAnotherOne) {
  Rng rng(2);
  const std::string good = EncodeSettings(RandomSession(rng));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << rng.Below(8)));
    Session session;
    const Status refused = DecodeSettings(bad, session);
    ASSERT_EQ(refused.code(), Code::kDataLoss) << i;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    Session session;
    ASSERT_EQ(DecodeSettings(good.substr(0, size), session).code(), Code::kDataLoss) << size;
  }
}

TEST(SessionCodec, SaysWhatIsWrong) {
  Session session;
  session.id = "ab";
  const std::string good = EncodeSettings(session);
  const auto why = [](const std::string& record) {
    Session read;
    return DecodeSettings(record, read).message();
  };
  EXPECT_EQ(why(""), "settings record has 0 bytes, fewer than any record");
  std::string newer = good;
  newer[0] = 2;
  EXPECT_EQ(why(newer), "settings record is of version 2, and this server reads 1 only");
  std::string flipped = good;
  flipped[5] = 'x';
  EXPECT_EQ(why(flipped), "settings record does not match its checksum");
  std::string short_id = good;
  short_id[4] = 1;  // the length of the id, now of 16 MiB and two bytes
  EXPECT_EQ(why(Sealed(short_id)),
            "settings record ends in id, which needs 16777218 bytes and has " +
                std::to_string(good.size() - 5 - 8));
  EXPECT_EQ(why(Sealed(good.substr(0, good.size() - 8) + "12345678more")),
            "settings record has 4 bytes behind its last field");
  std::string kind = EncodeSettings(Session());
  kind[1 + 4 + 8 + 8 + 8 + 4 + 8 + 4 + 4] = 3;
  EXPECT_EQ(why(Sealed(kind)), "settings record expiration must be in 0..2, is 3");
  std::string flag = EncodeSettings(Session());
  flag[1 + 4 + 8 + 8 + 8 + 4 + 8 + 4 + 4 + 1 + 4] = 7;
  EXPECT_EQ(why(Sealed(flag)), "settings record temperature must be 0 or 1, is 7");
  EXPECT_EQ(DecodeProgress(Sealed(EncodeLedger({}))).status().message(),
            "progress record ends in token_digest, which needs 8 bytes and has 0");
  EXPECT_THAT(DecodeLedger("").status().message(), HasSubstr("ledger record has 0 bytes"));
  std::vector<uint32_t> tokens;
  EXPECT_EQ(DecodeTokens("12345", tokens).message(),
            "tokens have 5 bytes, four for each and 1 more");
}

// A length that was damaged before the checksum was made asks for no memory.
TEST(SessionCodec, ListsHaveABound) {
  std::string record = EncodeSettings(Session());
  const size_t stop = 1 + 4 + 8 + 8 + 8 + 4 + 8 + 4 + 4 + 1 + 4 + 8;
  const uint32_t many = 0xffffffff;
  std::memcpy(record.data() + stop, &many, sizeof many);
  Session session;
  EXPECT_EQ(DecodeSettings(Sealed(record), session).message(),
            "settings record stop has 4294967295 entries");
}

}  // namespace
}  // namespace cairn
