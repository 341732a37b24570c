// Sessions in a store: what changes make of the keys, and what a load makes of keys that are
// damaged, missing, foreign or left over.
#include "engine/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/memory_store.h"
#include "tests/fakes/random_session.h"
#include "tests/fakes/scratch_folder.h"
#include "tests/fakes/tiny_vocabulary.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr Digest kVocabulary{1, 2};

class SessionStoreTest : public testing::Test {
 protected:
  void SetUp() override { Load(); }
  // As if a table had created the session just now.
  void Store(const Session& session) {
    SessionChanges changes;
    changes.Create(session);
    Note(changes, {&session});
  }
  void Note(SessionChanges& changes, const std::vector<const Session*>& sessions) {
    DurableBatch batch;
    for (const auto& [serial, change] : changes.Take()) {
      const Session* now = nullptr;
      for (const Session* session : sessions) {
        if (!change.gone && session->serial == serial) now = session;
      }
      AddChange(serial, change, now, batch);
    }
    ASSERT_TRUE(store_.Commit(batch, CommitSync::kDevice).ok());
  }
  StoredSessions Load() {
    Result<StoredSessions> loaded = LoadSessions(store_, kVocabulary, "tiny");
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return *std::move(loaded);
  }
  // The only session, which is damaged: why.
  std::string Damage() {
    const StoredSessions loaded = Load();
    EXPECT_EQ(loaded.sessions.size(), 1u);
    const StoredSession& stored = loaded.sessions.at(0);
    EXPECT_EQ(stored.damage.code(), Code::kDataLoss);
    EXPECT_THAT(stored.session.tokens, IsEmpty());
    const auto alone = LoadSession(store_, stored.session.id);
    EXPECT_EQ((**alone).damage.message(), stored.damage.message());
    const std::string prefix = "session '" + stored.session.id + "' is set aside: its ";
    EXPECT_TRUE(stored.damage.message().starts_with(prefix)) << stored.damage.message();
    return stored.damage.message().substr(prefix.size());
  }
  Session SmallSession(size_t token_count) {
    Session session = RandomSession(rng_);
    session.id = "small";
    session.serial = 5;
    session.tokens.assign(token_count, 7);
    for (size_t i = 0; i < token_count; ++i) session.tokens[i] = static_cast<uint32_t>(i);
    session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
    session.computed_token_count = 0;
    return session;
  }
  void Overwrite(const std::string& key_prefix, const std::function<void(std::string&)>& change) {
    store_.Damage([&](MemoryStore::Map& map) {
      const auto at = map.lower_bound(key_prefix);
      ASSERT_TRUE(at != map.end() && at->first.starts_with(key_prefix));
      change(at->second);
    });
  }

  Rng rng_{3};
  MemoryStore store_;
};

TEST_F(SessionStoreTest, AnEmptyStoreIsAnEmptyStart) {
  const StoredSessions loaded = Load();
  EXPECT_THAT(loaded.sessions, IsEmpty());
  EXPECT_EQ(loaded.ledger, SessionLedger());
  EXPECT_THAT(store_.Everything(), ElementsAre(Pair("m", "00000000000000010000000000000002 tiny")));
  EXPECT_EQ(*LoadSession(store_, "a"), std::nullopt);
}

TEST_F(SessionStoreTest, LoadsWhatWasStored) {
  std::map<std::string, Session> sessions;
  for (int i = 0; i < 40; ++i) {
    Session session = RandomSession(rng_);
    session.id = "s" + std::to_string(i);  // s1 is the beginning of s10
    session.serial = static_cast<uint64_t>(1000 - i);
    sessions.emplace(session.id, session);
    Store(session);
  }
  DurableBatch batch;
  AddLedger({.next_serial = 2000, .lived = std::chrono::hours(24 * 365 * 200)}, batch);
  ASSERT_TRUE(store_.Commit(batch, CommitSync::kDevice).ok());
  const StoredSessions loaded = Load();
  EXPECT_EQ(loaded.ledger.next_serial, 2000u);
  EXPECT_EQ(loaded.ledger.lived, std::chrono::hours(24 * 365 * 200));
  EXPECT_EQ(loaded.garbage_count, 0u);
  ASSERT_EQ(loaded.sessions.size(), sessions.size());
  auto expected = sessions.begin();
  for (const StoredSession& stored : loaded.sessions) {
    EXPECT_TRUE(stored.damage.ok()) << stored.damage.ToString();
    EXPECT_TRUE(SameSession(stored.session, (expected++)->second));
    const auto alone = LoadSession(store_, stored.session.id);
    ASSERT_TRUE(alone.ok() && alone->has_value());
    EXPECT_TRUE(SameSession((**alone).session, stored.session));
  }
}

// Random appends and truncations, several of them in a batch, over the edges of chunks.
TEST_F(SessionStoreTest, ChangesOfTokensAreExact) {
  Session session = SmallSession(0);
  SessionChanges changes;
  changes.Create(session);
  for (int round = 0; round < 300; ++round) {
    for (uint64_t i = rng_.Below(4); i > 0; --i) {
      const int64_t count = session.token_count();
      if (rng_.Chance(0.6)) {
        changes.ChangeTokens(session, count);
        session.tokens.resize(count + (rng_.Chance(0.7) ? 1 : rng_.Below(1500)),
                              static_cast<uint32_t>(rng_.Below(1000)));
      } else {
        const auto kept = static_cast<int64_t>(rng_.Below(count + 1));
        changes.ChangeTokens(session, kept);
        session.tokens.resize(kept);
      }
      session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
      session.computed_token_count = 0;
    }
    Note(changes, {&session});
    const auto stored = LoadSession(store_, session.id);
    ASSERT_TRUE(stored.ok() && stored->has_value());
    ASSERT_TRUE((**stored).damage.ok()) << (**stored).damage.ToString();
    ASSERT_TRUE(SameSession((**stored).session, session)) << round;
  }
  changes.Remove(session.id, session.serial);
  Note(changes, {});
  EXPECT_THAT(store_.Everything(), testing::SizeIs(1)) << "the model's name";
}

TEST_F(SessionStoreTest, ATokenCostsFourBytesAndItsProgress) {
  Session session = SmallSession(1500);
  Store(session);
  SessionChanges changes;
  changes.ChangeTokens(session, session.token_count());
  session.tokens.push_back(9);
  DurableBatch batch;
  for (const auto& [serial, change] : changes.Take()) AddChange(serial, change, &session, batch);
  ASSERT_EQ(batch.changes().size(), 2u);
  EXPECT_EQ(batch.changes()[1].kind, DurableBatch::Kind::kAppend);
  EXPECT_EQ(batch.changes()[1].value.size(), 4u);
  EXPECT_EQ(batch.bytes(), 9u + 65u + 13u + 4u);
}

TEST_F(SessionStoreTest, AnIdThatIsUsedAgainIsAnotherSession) {
  Session first = SmallSession(2000);
  Store(first);
  Session second = SmallSession(10);
  second.serial = 6;
  SessionChanges changes;
  changes.Remove(first.id, first.serial);
  changes.Create(second);
  Note(changes, {&second});
  const StoredSessions loaded = Load();
  ASSERT_EQ(loaded.sessions.size(), 1u);
  EXPECT_TRUE(SameSession(loaded.sessions[0].session, second));
  EXPECT_EQ(loaded.garbage_count, 0u);
}

TEST_F(SessionStoreTest, DamageOfOneSessionIsItsOwn) {
  const Session good = [&] {
    Session session = SmallSession(3);
    session.id = "good";
    session.serial = 1;
    return session;
  }();
  Store(good);
  Store(SmallSession(3000));
  Overwrite("ssmall", [](std::string& record) { record[20] ^= 1; });
  const StoredSessions loaded = Load();
  ASSERT_EQ(loaded.sessions.size(), 2u);
  EXPECT_TRUE(SameSession(loaded.sessions[0].session, good));
  EXPECT_FALSE(loaded.sessions[1].damage.ok());
  EXPECT_EQ(loaded.sessions[1].session.serial, 0u);
  EXPECT_EQ(loaded.garbage_count, 0u) << "its tokens may be wanted yet";
  SessionChanges changes;
  changes.Remove("small", 0);
  Note(changes, {});
  EXPECT_EQ(Load().garbage_count, 4u) << "progress and three chunks";
  EXPECT_EQ(Load().garbage_count, 0u);
  EXPECT_EQ(Load().sessions.size(), 1u);
}

TEST_F(SessionStoreTest, DamageIsFoundAndNamed) {
  Store(SmallSession(3000));
  const auto good = store_.Everything();
  const auto after = [&](const std::function<void(MemoryStore::Map&)>& change) {
    store_.Damage([&](MemoryStore::Map& map) {
      map = good;
      change(map);
    });
    return Damage();
  };
  const auto chunk = [](MemoryStore::Map& map, int which) {
    auto at = map.lower_bound("t");
    std::advance(at, which);
    return at;
  };
  EXPECT_EQ(after([&](auto& map) { chunk(map, 1)->second[17] ^= 1; }),
            "tokens do not have their digest");
  EXPECT_EQ(after([&](auto& map) { std::swap(chunk(map, 0)->second, chunk(map, 1)->second); }),
            "tokens do not have their digest");
  EXPECT_EQ(after([&](auto& map) { map.erase(chunk(map, 1)); }), "tokens from 1024 on are missing");
  EXPECT_EQ(after([&](auto& map) { map.erase(chunk(map, 2)); }), "3000 tokens are 2048");
  EXPECT_EQ(after([&](auto& map) { chunk(map, 2)->second.resize(7); }),
            "tokens have 7 bytes, four for each and 3 more");
  EXPECT_EQ(after([&](auto& map) { chunk(map, 1)->second += "more"; }), "chunk 1 has 4100 bytes");
  EXPECT_EQ(after([&](auto& map) { chunk(map, 2)->second += "more"; }), "3000 tokens are 3001");
  EXPECT_EQ(after([&](auto& map) { map.erase(map.lower_bound("p")); }),
            "progress record is missing");
  EXPECT_EQ(after([&](auto& map) { map.lower_bound("p")->second[3] ^= 1; }),
            "progress record does not match its checksum");
  EXPECT_EQ(after([&](auto& map) { map.lower_bound("s")->second[0] = 9; }),
            "settings record is of version 9, and this server reads 1 only");
  SessionProgress other = *DecodeProgress(good.lower_bound("p")->second);
  other.serial = 8;
  EXPECT_EQ(after([&](auto& map) { map.lower_bound("p")->second = EncodeProgress(other); }),
            "progress record is of another session");
  Session stranger = SmallSession(1);
  stranger.id = "stranger";
  EXPECT_EQ(after([&](auto& map) { map.lower_bound("s")->second = EncodeSettings(stranger); }),
            "settings record is of another session, 'stranger'");
}

TEST_F(SessionStoreTest, LeftoversOfNoSessionGo) {
  Store(SmallSession(3000));
  store_.Damage([](MemoryStore::Map& map) { map.erase(map.lower_bound("s")); });
  EXPECT_EQ(Load().garbage_count, 4u);
  EXPECT_THAT(store_.Everything(), testing::SizeIs(1));
}

TEST_F(SessionStoreTest, SessionsOfAnotherVocabularyAreNotServed) {
  ASSERT_TRUE(LoadSessions(store_, Digest{7, 7}, "another").ok()) << "nothing is there yet";
  ASSERT_TRUE(LoadSessions(store_, Digest{7, 7}, "another, smaller").ok());
  Store(SmallSession(3));
  const Status refused = LoadSessions(store_, kVocabulary, "tiny").status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "--disk-dir: its sessions are in the vocabulary of another, smaller, which is not that "
            "of tiny; "
            "give each model a directory of its own");
  EXPECT_EQ(LoadSessions(store_, Digest{7, 7}, "another, quantised")->sessions.size(), 1u);
}

TEST_F(SessionStoreTest, WithoutItsNameTheModelIsTakenToBeThisOne) {
  Store(SmallSession(3));
  for (const char* lost : {"", "half a na"}) {
    store_.Damage([&](MemoryStore::Map& map) { map["m"] = lost; });
    testing::internal::CaptureStderr();
    EXPECT_EQ(Load().sessions.size(), 1u);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("taken to be of tiny"));
    EXPECT_EQ(store_.Everything()["m"], "00000000000000010000000000000002 tiny");
  }
}

TEST_F(SessionStoreTest, ValuesThatATableHasLostAreFoundAndNamed) {
  Store(SmallSession(3000));
  const auto good = store_.Everything();
  for (const auto& [prefix, damage] :
       {std::pair("s", "settings record has 0 bytes, fewer than any record"),
        std::pair("p", "progress record has 0 bytes, fewer than any record"),
        std::pair("t", "tokens from 0 on are missing")}) {
    store_.Damage([&](MemoryStore::Map& map) {
      map = good;
      map.lower_bound(prefix)->second.clear();
    });
    EXPECT_EQ(Damage(), damage);
  }
}

TEST_F(SessionStoreTest, AllOfASessionIsWrittenAgain) {
  const Session session = SmallSession(3000);
  Store(session);
  store_.Damage([](MemoryStore::Map& map) {
    for (auto& [key, value] : map) {
      if (key != "m") value.clear();
    }
    map["t" + std::string(7, '\0') + '\5' + std::string(3, '\0') + '\x09'] = "beyond the end";
  });
  SessionChanges changes;
  changes.ChangeTokens(session, 3000);
  changes.ChangeAll(session);
  Note(changes, {&session});
  const StoredSessions loaded = Load();
  ASSERT_EQ(loaded.sessions.size(), 1u);
  EXPECT_TRUE(SameSession(loaded.sessions[0].session, session));
}

TEST_F(SessionStoreTest, ADamagedLedgerIsToldFromTheSessions) {
  const Session session = SmallSession(3);
  Store(session);
  store_.Damage([](MemoryStore::Map& map) { map["l"] = "nonsense"; });
  const StoredSessions loaded = Load();
  EXPECT_EQ(loaded.ledger_damage.message(), "ledger record has 8 bytes, fewer than any record");
  EXPECT_EQ(loaded.ledger.next_serial, session.serial + 1);
  EXPECT_EQ(loaded.ledger.lived, session.last_use_lived);
}

TEST(VocabularyDigest, TellsVocabulariesApart) {
  const auto of = [](const char* kind) {
    return VocabularyDigest(**Tokenizer::Create(TinyVocabulary(kind)));
  };
  EXPECT_EQ(of("smollm"), of("smollm"));
  Vocabulary other = TinyVocabulary("smollm");
  std::swap(other.tokens[10], other.tokens[11]);
  EXPECT_NE(of("smollm"), VocabularyDigest(**Tokenizer::Create(other)));
}

TEST_F(SessionStoreTest, ATornSessionGoesBackToWhatItWasBeforeTheDamage) {
  auto before = std::make_unique<MemoryStore>();
  Session session = SmallSession(3);
  SessionChanges changes;
  changes.Create(session);
  DurableBatch batch;
  AddChange(session.serial, changes.Take().begin()->second, &session, batch);
  ASSERT_TRUE(before->Commit(batch, CommitSync::kDevice).ok());
  store_.before_damage = std::move(before);
  Session later = SmallSession(6);
  Store(later);
  Overwrite("t",
            [](std::string& tokens) { tokens.resize(tokens.size() - 4); });  // an append is lost
  for (int round = 0; round < 2; ++round) {                                  // it is written so
    const StoredSessions loaded = Load();
    ASSERT_EQ(loaded.sessions.size(), 1u);
    EXPECT_TRUE(loaded.sessions[0].damage.ok()) << loaded.sessions[0].damage.ToString();
    EXPECT_TRUE(SameSession(loaded.sessions[0].session, session));
  }
}

TEST_F(SessionStoreTest, ATornSessionDoesNotBecomeAnEarlierOneOfItsName) {
  auto before = std::make_unique<MemoryStore>();
  Session earlier = SmallSession(3);
  earlier.serial = 4;
  SessionChanges changes;
  changes.Create(earlier);
  DurableBatch batch;
  AddChange(earlier.serial, changes.Take().begin()->second, &earlier, batch);
  ASSERT_TRUE(before->Commit(batch, CommitSync::kDevice).ok());
  store_.before_damage = std::move(before);
  Store(SmallSession(6));
  Overwrite("t", [](std::string& tokens) { tokens.resize(tokens.size() - 4); });
  EXPECT_EQ(Load().sessions.at(0).damage.code(), Code::kDataLoss);
}

// Real logs, in which a bit is flipped somewhere: whatever is served was true at some moment, and
// most of what was written behind the damage is there.
TEST(DamagedLogs, NothingTornIsServedAndLittleIsLost) {
  constexpr int kRounds = 12, kSessions = 30, kChanges = 600;
  int whole_count = 0, latest_count = 0;
  for (uint64_t seed = 1; seed <= kRounds; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const ScratchFolder scratch;
    const FakeClock clock;
    const std::string path = scratch.File("store");
    std::map<std::string, std::vector<Session>> states;  // of each, one after the other
    ASSERT_TRUE(LoadSessions(**OpenDurableStore(path, clock), kVocabulary, "tiny").ok());
    {
      const auto store = *OpenDurableStore(path, clock);
      for (int i = 0; i < kChanges; ++i) {
        const uint64_t number = rng.Below(kSessions);
        std::vector<Session>& past = states["s" + std::to_string(number)];
        SessionChanges changes;
        Session session;
        if (past.empty()) {
          session = RandomSession(rng);
          session.id = "s" + std::to_string(number);
          session.serial = number + 1;
          session.tokens.clear();
          session.computed_token_count = 0;
          changes.Create(session);
        } else {
          session = past.back();
          const bool cuts = rng.Chance(0.2);
          const size_t kept = cuts ? rng.Below(session.tokens.size() + 1) : session.tokens.size();
          changes.ChangeTokens(session, static_cast<int64_t>(kept));
          session.tokens.resize(kept);
        }
        for (uint64_t more = 1 + rng.Below(100); more > 0; --more) {
          session.tokens.push_back(static_cast<uint32_t>(rng.Below(100)));
        }
        session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
        past.push_back(session);
        DurableBatch batch;
        AddChange(session.serial, changes.Take().begin()->second, &session, batch);
        ASSERT_TRUE(store->Commit(batch, CommitSync::kSystem).ok());
      }
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(rng.Below(entry.file_size()));
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 1 << rng.Below(8)));
    }
    const auto store = *OpenDurableStore(path, clock);
    const Result<StoredSessions> loaded = LoadSessions(*store, kVocabulary, "tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    for (const auto& [damage, session] : loaded->sessions) {
      if (!damage.ok()) continue;
      const std::vector<Session>& past = states.at(session.id);
      ++whole_count;
      latest_count += SameSession(session, past.back());
      EXPECT_TRUE(std::ranges::any_of(past, [&](const Session& state) {
        return SameSession(session, state);
      })) << session.id;
    }
  }
  EXPECT_GT(whole_count, kRounds * kSessions * 8 / 10);
  EXPECT_GT(latest_count, kRounds * kSessions / 2);
}

}  // namespace
}  // namespace cairn
