// Sessions in memory: every rule of the table.
#include "engine/session_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/fakes/fake_clock.h"

namespace cairn {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Ids = std::vector<uint32_t>;

constexpr uint32_t kVocabularySize = 1000;

EngineConfig SmallConfig() {
  EngineConfig config;
  config.context_length = 100;
  config.session_count_max = 5;
  config.session_tokens_max = 250;
  return config;
}

class SessionTableTest : public testing::Test {
 protected:
  const Session& Create(const std::string& id, SessionSettings settings = {}) {
    CreateSessionRequest request;
    request.id = id;
    request.settings = std::move(settings);
    return **table_.Create(request);
  }
  Status Refused(const CreateSessionRequest& request) {
    const size_t before = table_.session_count();
    Status status = table_.Create(request).status();
    EXPECT_EQ(table_.session_count(), before);
    return status;
  }
  const Session& At(const std::string& id) { return **table_.Find(id); }
  void Fill(const std::string& id, size_t count) {
    ASSERT_TRUE(table_.Append(id, Ids(count, 7), std::nullopt).ok());
  }
  // Time passes, and the next command begins; what it finds expired.
  std::vector<std::string> Advance(nanoseconds step) {
    clock_.Advance(step);
    return table_.ExpireNow([](const std::string&) { return false; });
  }
  void TearDown() override { table_.CheckInvariants(); }

  const EngineConfig config_ = SmallConfig();
  FakeClock clock_;
  SessionTable table_{config_, kVocabularySize, clock_, 1};
};

TEST_F(SessionTableTest, CreatesAndFinds) {
  SessionSettings settings;
  settings.display_name = "A talk";
  settings.priority = 0;
  settings.sampling.temperature = 0.5f;
  settings.pinned = true;
  settings.annotations = {{"team", "blue"}};
  const Session& session = Create("talk-1", settings);
  EXPECT_EQ(&At("talk-1"), &session);
  const SessionInfo info = table_.Info(session);
  EXPECT_EQ(info.id, "talk-1");
  EXPECT_EQ(info.settings.display_name, "A talk");
  EXPECT_EQ(info.settings.priority, 0);
  EXPECT_EQ(info.settings.annotations.at("team"), "blue");
  EXPECT_EQ(info.token_count, 0);
  EXPECT_EQ(info.create_time, clock_.WallNow());
  EXPECT_EQ(info.update_time, clock_.WallNow());
  EXPECT_EQ(info.expire_time, std::nullopt);
  EXPECT_EQ(info.parent_id, "");
  EXPECT_EQ(info.etag, "1");
}

TEST_F(SessionTableTest, UnknownSessionsAreNamed) {
  const Status missing = table_.Find("gone").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_EQ(missing.message(), "session 'gone' does not exist or has expired");
  EXPECT_EQ(table_.Update({"gone", {}, ""}).status().code(), Code::kNotFound);
  EXPECT_EQ(table_.Delete("gone").code(), Code::kNotFound);
  EXPECT_EQ(table_.Fork({"gone", "new", {}}).status().code(), Code::kNotFound);
  EXPECT_EQ(table_.Truncate("gone", 0).status().code(), Code::kNotFound);
  EXPECT_EQ(table_.Append("gone", Ids{1}, std::nullopt).status().code(), Code::kNotFound);
  EXPECT_EQ(table_.CheckAppend("gone", 1, std::nullopt).code(), Code::kNotFound);
  EXPECT_EQ(table_.MarkComputed("gone", 0).code(), Code::kNotFound);
  EXPECT_EQ(table_.Touch("gone").code(), Code::kNotFound);
}

TEST_F(SessionTableTest, IdsHaveAForm) {
  const std::string longest(63, 'a');
  for (const std::string& good : {std::string("a"), std::string("0-9-z"), longest}) {
    EXPECT_EQ(Create(good).id, good);
  }
  const std::vector<std::pair<std::string, std::string>> bad = {
      {longest + "a", "session_id: must have 1 to 63 bytes, has 64"},
      {"-a", "session_id: must match [a-z0-9][a-z0-9-]{0,62}, byte 0 is '-'"},
      {"aB", "session_id: must match [a-z0-9][a-z0-9-]{0,62}, byte 1 is 'B'"},
      {"a/b", "session_id: must match [a-z0-9][a-z0-9-]{0,62}, byte 1 is '/'"},
      {"caf\xC3\xA9", "session_id: must match [a-z0-9][a-z0-9-]{0,62}, byte 3 is '\\xc3'"},
  };
  for (const auto& [id, message] : bad) {
    CreateSessionRequest request;
    request.id = id;
    const Status status = Refused(request);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.field(), "session_id");
    EXPECT_EQ(status.message(), message);
  }
}

TEST_F(SessionTableTest, MintsIdsAndSeeds) {
  const std::string first = Create("").id;
  const std::string second = Create("").id;
  EXPECT_NE(first, second);
  for (const std::string& id : {first, second}) {
    EXPECT_EQ(id.size(), 12u);
    EXPECT_EQ(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz234567"), std::string::npos);
  }
  EXPECT_NE(At(first).seed, At(second).seed);
  SessionTable same_seed(config_, kVocabularySize, clock_, 1);
  const Session& again = **same_seed.Create({});
  EXPECT_EQ(again.id, first);
  EXPECT_EQ(again.seed, At(first).seed);
}

TEST_F(SessionTableTest, AnIdIsTakenOnce) {
  Create("a");
  CreateSessionRequest request;
  request.id = "a";
  EXPECT_EQ(Refused(request).code(), Code::kAlreadyExists);
  EXPECT_EQ(Refused(request).message(), "session 'a' exists");
  EXPECT_EQ(table_.Fork({"a", "a", {}}).status().code(), Code::kAlreadyExists);
}

TEST_F(SessionTableTest, HasRoomForSoManySessions) {
  for (int i = 0; i < 5; ++i) Create("");
  const Status full = Refused({});
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_TRUE(full.retry_after().has_value());
  const std::string id = table_.List({})->sessions[0].id;
  EXPECT_EQ(table_.Fork({id, "", {}}).status().code(), Code::kResourceExhausted);
  ASSERT_TRUE(table_.Delete(id).ok());
  Create("");
}

struct BadSetting {
  std::function<void(SessionSettings&)> break_it;
  std::string field;
  std::string message;
};

std::vector<BadSetting> BadSettings(Clock::Wall now) {
  return {
      {[](auto& s) { s.display_name.assign(257, 'x'); }, "session.display_name",
       "session.display_name: must have at most 256 bytes, has 257"},
      {[](auto& s) { s.priority = -1; }, "session.priority",
       "session.priority: must be in 0..100, is -1"},
      {[](auto& s) { s.priority = 101; }, "session.priority",
       "session.priority: must be in 0..100, is 101"},
      {[](auto& s) { s.expiration = nanoseconds(0); }, "session.ttl",
       "session.ttl: must be above 0 and at most 100 years, is 0 ns"},
      {[](auto& s) { s.expiration = nanoseconds::max(); }, "session.ttl",
       "session.ttl: must be above 0 and at most 100 years, is 9223372036854775807 ns"},
      {[now](auto& s) { s.expiration = now; }, "session.expire_time",
       "session.expire_time: must be in the future, is 0 ms ago"},
      {[now](auto& s) { s.expiration = now - seconds(2); }, "session.expire_time",
       "session.expire_time: must be in the future, is 2000 ms ago"},
      {[](auto& s) {
         for (int i = 0; i < 33; ++i) s.annotations[std::to_string(i)] = "x";
       },
       "session.annotations", "session.annotations: must have at most 32 entries, has 33"},
      {[](auto& s) { s.annotations[""] = "x"; }, "session.annotations",
       "session.annotations: a key must have 1 to 63 bytes, one has 0"},
      {[](auto& s) { s.annotations[std::string(64, 'k')] = "x"; }, "session.annotations",
       "session.annotations: a key must have 1 to 63 bytes, one has 64"},
      {[](auto& s) { s.annotations["k"] = std::string(1025, 'v'); }, "session.annotations[k]",
       "session.annotations[k]: must have at most 1024 bytes, has 1025"},
      {[](auto& s) { s.sampling.temperature = -1.0f; }, "session.sampling.temperature",
       "session.sampling.temperature: must be in [0, 2], is -1"},
      {[](auto& s) { s.sampling.stop_token_ids = {kVocabularySize}; },
       "session.sampling.stop_token_ids[0]",
       "session.sampling.stop_token_ids[0]: must be a token id below the vocabulary size 1000, is "
       "1000"},
  };
}

TEST_F(SessionTableTest, SettingsHaveBounds) {
  Create("a");
  for (const BadSetting& bad : BadSettings(clock_.WallNow())) {
    CreateSessionRequest request;
    bad.break_it(request.settings);
    const Status status = Refused(request);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.field(), bad.field);
    EXPECT_EQ(status.message(), bad.message);

    const SessionSettings& settings = request.settings;
    const SessionPatch patch = {settings.display_name, settings.expiration, settings.priority,
                                settings.sampling,     settings.pinned,     settings.annotations};
    EXPECT_EQ(table_.Update({"a", patch, ""}).status().message(), bad.message);
    EXPECT_EQ(At("a").revision, 1u);
  }
  CreateSessionRequest salted;
  salted.cache_salt.assign(65, 's');
  EXPECT_EQ(Refused(salted).message(), "session.cache_salt: must have at most 64 bytes, has 65");
}

TEST_F(SessionTableTest, UpdatesWhatThePatchNames) {
  SessionSettings settings;
  settings.display_name = "before";
  settings.priority = 10;
  Create("a", settings);
  Advance(seconds(5));
  SessionPatch patch;
  patch.priority = 90;
  const Session& updated = **table_.Update({"a", patch, "1"});
  EXPECT_EQ(updated.settings.display_name, "before");
  EXPECT_EQ(updated.settings.priority, 90);
  EXPECT_EQ(updated.etag(), "2");
  EXPECT_EQ(updated.update_time, clock_.WallNow());
  EXPECT_EQ(updated.create_time, clock_.WallNow() - seconds(5));

  patch.priority = 1;
  const Status stale = table_.Update({"a", patch, "1"}).status();
  EXPECT_EQ(stale.code(), Code::kAborted);
  EXPECT_EQ(stale.message(), "session 'a' has changed: its etag is '2', the request's is '1'");
  EXPECT_EQ(At("a").settings.priority, 90);
  EXPECT_TRUE(table_.Update({"a", patch, ""}).ok());  // without an etag the last one wins

  SessionPatch all;
  all.display_name = "";
  all.expiration = Expiration(nanoseconds(hours(1)));
  all.sampling = SamplingParams{.temperature = 0.0f};
  all.pinned = true;
  all.annotations = std::map<std::string, std::string>{{"k", "v"}};
  const SessionSettings& now = (**table_.Update({"a", all, ""})).settings;
  EXPECT_EQ(now.display_name, "");
  EXPECT_EQ(now.priority, 1);
  EXPECT_EQ(now.sampling.temperature, 0.0f);
  EXPECT_TRUE(now.pinned);
  EXPECT_EQ(now.annotations.size(), 1u);
  EXPECT_EQ(table_.Info(At("a")).expire_time, clock_.WallNow() + hours(1));
}

TEST_F(SessionTableTest, AppendsAtTheExpectedCount) {
  Create("a");
  EXPECT_EQ(*table_.Append("a", Ids{1, 2, 3}, 0), 3);
  EXPECT_EQ(*table_.Append("a", Ids{4}, std::nullopt), 4);
  const Status stale = table_.Append("a", Ids{4}, 3).status();
  EXPECT_EQ(stale.code(), Code::kAborted);
  EXPECT_EQ(stale.message(), "session 'a' holds 4 tokens, expected_token_count is 3");
  EXPECT_EQ(At("a").tokens, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(*table_.Append("a", Ids{}, 4), 4);
  EXPECT_EQ(At("a").etag(), "1");  // tokens have their own guard
  EXPECT_EQ(table_.total_token_count(), 4u);
}

TEST_F(SessionTableTest, TokensHaveBounds) {
  for (const char* id : {"a", "b", "c"}) Create(id);
  Fill("a", 99);
  const Status over = table_.Append("a", Ids{1, 2}, std::nullopt).status();
  EXPECT_EQ(over.code(), Code::kInvalidArgument);
  EXPECT_EQ(over.field(), "content");
  EXPECT_EQ(over.message(),
            "content: session 'a' holds 99 tokens, and 2 more are over the context of 100");
  EXPECT_FALSE(table_.CheckAppend("a", std::numeric_limits<uint64_t>::max(), std::nullopt).ok());
  Fill("a", 1);
  Fill("b", 100);
  const Status full = table_.Append("c", Ids(51, 1), std::nullopt).status();
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(full.message(), "all sessions hold 200 tokens, and 51 more are over the limit of 250");
  EXPECT_TRUE(full.retry_after().has_value());
  EXPECT_EQ(table_.Fork({"a", "d", {}}).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(table_.Fork({"a", "d", 50}).ok());
  ASSERT_TRUE(table_.Delete("b").ok());
  Fill("c", 51);
}

TEST_F(SessionTableTest, TruncateForgetsTokensAndTheirKv) {
  Create("a");
  Fill("a", 10);
  ASSERT_TRUE(table_.MarkComputed("a", 9).ok());
  ASSERT_TRUE(table_.MarkComputed("a", 4).ok());  // a high-water mark
  EXPECT_EQ(At("a").computed_token_count, 9);
  for (const int64_t count : {int64_t{-1}, int64_t{11}, std::numeric_limits<int64_t>::max()}) {
    const Status refused = table_.Truncate("a", count).status();
    EXPECT_EQ(refused.field(), "token_count");
    EXPECT_EQ(refused.message(), "token_count: must be in 0..10, is " + std::to_string(count));
  }
  EXPECT_EQ((**table_.Truncate("a", 10)).computed_token_count, 9);
  EXPECT_EQ((**table_.Truncate("a", 6)).tokens, Ids(6, 7));
  EXPECT_EQ(At("a").computed_token_count, 6);
  Fill("a", 4);
  EXPECT_EQ(At("a").computed_token_count, 6);
  EXPECT_TRUE((**table_.Truncate("a", 0)).tokens.empty());
  EXPECT_EQ(table_.total_token_count(), 0u);
}

TEST_F(SessionTableTest, ForkTakesTokensAndSettings) {
  CreateSessionRequest request;
  request.id = "a";
  request.settings.priority = 80;
  request.cache_salt = "salt";
  ASSERT_TRUE(table_.Create(request).ok());
  ASSERT_TRUE(table_.Append("a", Ids{1, 2, 3, 4}, 0).ok());
  ASSERT_TRUE(table_.MarkComputed("a", 3).ok());
  Advance(seconds(1));
  const Session& whole = **table_.Fork({"a", "b", {}});
  EXPECT_EQ(whole.tokens, At("a").tokens);
  EXPECT_EQ(whole.computed_token_count, 3);
  EXPECT_EQ(whole.settings.priority, 80);
  EXPECT_EQ(whole.cache_salt, "salt");
  EXPECT_EQ(whole.parent_id, "a");
  EXPECT_EQ(whole.create_time, clock_.WallNow());
  EXPECT_EQ(whole.etag(), "1");
  EXPECT_NE(whole.seed, At("a").seed);
  const Session& part = **table_.Fork({"a", "", 2});
  EXPECT_EQ(part.tokens, (Ids{1, 2}));
  EXPECT_EQ(part.computed_token_count, 2);
  for (const int64_t count : {-1, 5}) {
    const Status refused = table_.Fork({"a", "c", count}).status();
    EXPECT_EQ(refused.message(), "token_count: must be in 0..4, is " + std::to_string(count));
  }
  EXPECT_EQ(table_.session_count(), 3u);
  ASSERT_TRUE(table_.Delete("a").ok());
  EXPECT_EQ(At("b").tokens, (Ids{1, 2, 3, 4}));
}

TEST_F(SessionTableTest, AFixedMomentExpires) {
  SessionSettings settings;
  settings.expiration = clock_.WallNow() + seconds(10);
  Create("a", settings);
  EXPECT_TRUE(Advance(seconds(10) - nanoseconds(1)).empty());
  ASSERT_TRUE(table_.Touch("a").ok());  // does not move a fixed moment
  EXPECT_EQ(Advance(nanoseconds(1)), std::vector<std::string>{"a"});
  EXPECT_EQ(table_.Find("a").status().code(), Code::kNotFound);
  EXPECT_TRUE(table_.List({})->sessions.empty());
  EXPECT_TRUE(Advance(nanoseconds(0)).empty());
  Create("a");
}

TEST_F(SessionTableTest, ATimeToLiveSlides) {
  SessionSettings settings;
  settings.expiration = nanoseconds(seconds(10));
  Create("a", settings);
  const std::vector<std::function<void()>> uses = {
      [&] { ASSERT_TRUE(table_.Touch("a").ok()); },
      [&] { ASSERT_TRUE(table_.Append("a", Ids{1}, std::nullopt).ok()); },
      [&] { ASSERT_TRUE(table_.Truncate("a", 0).ok()); },
      [&] {
        ASSERT_TRUE(table_.Update({"a", {}, ""}).ok());
      },
      [&] {
        ASSERT_TRUE(table_.Fork({"a", "", {}}).ok());
      },
  };
  for (const auto& use : uses) {
    EXPECT_TRUE(Advance(seconds(9)).empty());
    use();
    EXPECT_EQ(table_.Info(At("a")).expire_time, clock_.WallNow() + seconds(10));
    table_.CheckInvariants();
  }
  EXPECT_TRUE(Advance(seconds(9)).empty());
  ASSERT_TRUE(table_.Find("a").ok());         // looking is not using
  EXPECT_EQ(Advance(seconds(1)).size(), 2u);  // and the fork, which took the time to live
}

TEST_F(SessionTableTest, AnUpdateMovesOrRemovesTheEnd) {
  SessionSettings settings;
  settings.expiration = nanoseconds(seconds(10));
  Create("a", settings);
  SessionPatch patch;
  patch.expiration = Expiration(nanoseconds(seconds(3)));
  ASSERT_TRUE(table_.Update({"a", patch, ""}).ok());
  EXPECT_TRUE(Advance(seconds(2)).empty());
  patch.expiration = Expiration();
  ASSERT_TRUE(table_.Update({"a", patch, ""}).ok());
  EXPECT_TRUE(Advance(hours(24 * 365)).empty());
  EXPECT_EQ(table_.Info(At("a")).expire_time, std::nullopt);
}

TEST_F(SessionTableTest, TimeStandsStillWithinACommand) {
  SessionSettings settings;
  settings.expiration = nanoseconds(1);
  const Session& session = Create("a", settings);
  clock_.Advance(seconds(1));
  EXPECT_TRUE(table_.Append("a", Ids{1}, 0).ok());  // still the command that created it
  EXPECT_EQ(session.update_time, session.create_time);
  EXPECT_EQ(table_.ExpireNow([](const std::string&) { return false; }),
            std::vector<std::string>{"a"});
}

TEST_F(SessionTableTest, ListsInPages) {
  for (const char* id : {"b", "e", "a", "d", "c"}) Create(id);
  ListSessionsRequest request;
  request.page_size = 2;
  std::vector<std::string> listed;
  std::vector<std::string> tokens;
  do {
    const SessionPage page = *table_.List(request);
    EXPECT_LE(page.sessions.size(), 2u);
    for (const SessionInfo& info : page.sessions) listed.push_back(info.id);
    request.page_token = page.next_page_token;
    tokens.push_back(request.page_token);
  } while (!request.page_token.empty());
  EXPECT_EQ(listed, (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(tokens.size(), 3u);

  // A token stays good when the session that it points behind is gone.
  ASSERT_TRUE(table_.Delete("b").ok());
  request.page_token = tokens[0];
  EXPECT_EQ(table_.List(request)->sessions[0].id, "c");
  request.page_size = 5;
  EXPECT_EQ(table_.List(request)->next_page_token, "");
}

TEST_F(SessionTableTest, PagesOfAFullListEndExactly) {
  for (const char* id : {"a", "b"}) Create(id);
  ListSessionsRequest request;
  request.page_size = 2;
  EXPECT_EQ(table_.List(request)->next_page_token, "");
}

TEST_F(SessionTableTest, PageTokensFromNowhereAreRefused) {
  for (const char* id : {"aa", "b"}) Create(id);
  const std::string good = table_.List({1, ""})->next_page_token;
  ASSERT_TRUE(table_.List({1, good}).ok());
  std::string changed = good;
  changed.back() = 'b';
  for (const std::string& token : {std::string("x"), std::string("aa"), std::string("00000000aa"),
                                   good + "a", good.substr(0, 8), changed}) {
    const Status refused = table_.List({1, token}).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.field(), "page_token");
    EXPECT_NE(refused.message().find(token), std::string::npos);
  }
  const Status negative = table_.List({-1, ""}).status();
  EXPECT_EQ(negative.message(), "page_size: must not be negative, is -1");
}

TEST(SessionTablePages, HaveADefaultAndAHighestSize) {
  EngineConfig config = SmallConfig();
  config.session_count_max = 3000;
  FakeClock clock;
  SessionTable table(config, kVocabularySize, clock, 2);
  for (int i = 0; i < 1100; ++i) ASSERT_TRUE(table.Create({}).ok());
  EXPECT_EQ(table.List({})->sessions.size(), 100u);
  EXPECT_EQ(table.List({1000, ""})->sessions.size(), 1000u);
  EXPECT_EQ(table.List({std::numeric_limits<int32_t>::max(), ""})->sessions.size(), 1000u);
  EXPECT_EQ(table.session_count(), 1100u);
}

}  // namespace
}  // namespace cairn
