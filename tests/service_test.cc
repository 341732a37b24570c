// Every RPC over real gRPC on loopback, as a client sees it.
#include <map>
#include <set>

#include "tests/service_harness.h"

namespace cairn {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ServiceTest : public testing::Test {
 protected:
  StreamOutcome Decode(const v1::DecodeRequest& request) {
    grpc::ClientContext context;
    return ReadAll(harness_.sessions().Decode(&context, request));
  }
  StreamOutcome Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return ReadAll(harness_.decoder().Generate(&context, request));
  }
  v1::Session Get(const std::string& name) {
    v1::GetSessionRequest request;
    request.set_name(name);
    v1::Session session;
    grpc::ClientContext context;
    const grpc::Status status = harness_.sessions().GetSession(&context, request, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session;
  }
  std::vector<uint32_t> ReadTokens(const std::string& name, int64_t start = 0, int64_t count = 0,
                                   std::string* text = nullptr) {
    v1::ReadTokensRequest request;
    request.set_name(name);
    request.set_start_position(start);
    request.set_token_count(count);
    grpc::ClientContext context;
    auto stream = harness_.sessions().ReadTokens(&context, request);
    std::vector<uint32_t> ids;
    v1::ReadTokensResponse message;
    while (stream->Read(&message)) {
      EXPECT_EQ(message.position(), start + static_cast<int64_t>(ids.size()));
      ids.insert(ids.end(), message.token_ids().begin(), message.token_ids().end());
      if (text) *text += message.text();
    }
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return ids;
  }

  ServiceHarness harness_;
};

v1::DecodeRequest DecodeOf(const std::string& name, uint32_t max_tokens) {
  v1::DecodeRequest request;
  request.set_name(name);
  request.set_max_tokens(max_tokens);
  SetGreedy(*request.mutable_sampling());
  return request;
}

TEST_F(ServiceTest, GetModelSaysWhatIsServed) {
  v1::Model model;
  grpc::ClientContext context;
  ASSERT_TRUE(harness_.model().GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.architecture(), "llama");
  EXPECT_EQ(model.vocabulary_size(), 320);
  EXPECT_EQ(model.context_length(), 2048);
  EXPECT_EQ(model.backend(), "cpu");
  EXPECT_THAT(model.arithmetic(), HasSubstr("exact"));
  EXPECT_EQ(model.kv().bytes_per_token(), 2 * 2 * 2 * 16 * 2);  // K and V, layers, heads, dim, f16
  EXPECT_EQ(model.kv().bytes_per_block(), model.kv().bytes_per_token() * 16);
}

TEST_F(ServiceTest, TokenizeAndDetokenizeAreInverse) {
  v1::TokenizeRequest request;
  request.mutable_content()->set_text("the rain in spain \xe2\x98\x82 123");
  v1::TokenizeResponse ids;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.decoder().Tokenize(&context, request, &ids).ok());
  }
  EXPECT_GT(ids.ids_size(), 5);
  v1::DetokenizeRequest back;
  *back.mutable_ids() = ids.ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  ASSERT_TRUE(harness_.decoder().Detokenize(&context, back, &text).ok());
  EXPECT_EQ(text.text(), request.content().text());
}

TEST_F(ServiceTest, GenerateStreamsToTheLength) {
  v1::GenerateRequest request;
  request.mutable_content()->set_text("once upon a time");
  request.set_max_tokens(50);
  SetGreedy(*request.mutable_sampling());
  const StreamOutcome first = Generate(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_THAT(first.tokens, SizeIs(50));
  EXPECT_EQ(first.finish_reason, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(first.usage.completion_tokens(), 50);
  EXPECT_EQ(
      first.usage.prompt_tokens(),
      first.usage.cached_tokens() + first.usage.recomputed_tokens() + first.usage.new_tokens());
  EXPECT_GT(first.usage.first_token_time().nanos(), 0);
  const StreamOutcome second = Generate(request);
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.text, first.text);
}

TEST_F(ServiceTest, LogprobsComeOneAToken) {
  v1::GenerateRequest request;
  request.mutable_content()->set_text("once upon");
  request.set_max_tokens(5);
  SetGreedy(*request.mutable_sampling());
  request.mutable_sampling()->set_logprobs(3);
  grpc::ClientContext context;
  auto stream = harness_.decoder().Generate(&context, request);
  v1::GenerateResponse message;
  std::vector<uint32_t> ids;
  while (stream->Read(&message)) {
    ASSERT_EQ(message.logprobs_size(), message.token_ids_size());
    for (int i = 0; i < message.logprobs_size(); ++i) {
      EXPECT_EQ(message.logprobs(i).token_id(), message.token_ids(i));
      ASSERT_EQ(message.logprobs(i).top_size(), 3);
      EXPECT_EQ(message.logprobs(i).top(0).token_id(), message.token_ids(i));  // greedy
      ids.push_back(message.token_ids(i));
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(ids, SizeIs(5));
}

TEST_F(ServiceTest, ASessionIsCreatedReadAndDeleted) {
  v1::CreateSessionRequest request;
  request.set_session_id("chat-1");
  request.mutable_session()->set_display_name("A chat");
  request.mutable_session()->set_priority(0);
  request.mutable_session()->set_cache_salt("tenant");
  request.mutable_session()->mutable_ttl()->set_seconds(600);
  (*request.mutable_session()->mutable_annotations())["user"] = "ada";
  request.mutable_content()->set_text("hello there");
  v1::Session session;
  {
    grpc::ClientContext context;
    const grpc::Status status = harness_.sessions().CreateSession(&context, request, &session);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(session.name(), "sessions/chat-1");
  EXPECT_EQ(session.priority(), 0);
  EXPECT_EQ(session.cache_salt(), "tenant");
  EXPECT_EQ(session.ttl().seconds(), 600);
  EXPECT_GT(session.next_expire_time().seconds(), session.create_time().seconds());
  EXPECT_EQ(session.state(), v1::Session::STATE_IDLE);
  EXPECT_GT(session.token_count(), 0);
  EXPECT_EQ(Get("sessions/chat-1").annotations().at("user"), "ada");

  grpc::ClientContext again;
  const grpc::Status exists = harness_.sessions().CreateSession(&again, request, &session);
  EXPECT_EQ(exists.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(exists)->resource_name(), "sessions/chat-1");

  v1::DeleteSessionRequest remove;
  remove.set_name("sessions/chat-1");
  google::protobuf::Empty empty;
  {
    grpc::ClientContext context;
    EXPECT_TRUE(harness_.sessions().DeleteSession(&context, remove, &empty).ok());
  }
  grpc::ClientContext context;
  EXPECT_EQ(harness_.sessions().DeleteSession(&context, remove, &empty).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, IdsAreMintedWhenNoneIsGiven) {
  const std::string first = harness_.Create("").name();
  const std::string second = harness_.Create("").name();
  EXPECT_THAT(first, testing::MatchesRegex("sessions/[a-z0-9][a-z0-9-]*"));
  EXPECT_NE(first, second);
}

TEST_F(ServiceTest, ListGoesThroughEverySessionInPages) {
  std::set<std::string> made;
  for (int i = 0; i < 25; ++i) made.insert(harness_.Create("s" + std::to_string(i)).name());
  v1::ListSessionsRequest request;
  request.set_page_size(10);
  std::vector<std::string> listed;
  do {
    v1::ListSessionsResponse page;
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().ListSessions(&context, request, &page).ok());
    EXPECT_LE(page.sessions_size(), 10);
    for (const v1::Session& session : page.sessions()) listed.push_back(session.name());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(listed, ElementsAreArray(made));  // in order of their names
}

TEST_F(ServiceTest, APageFitsWhatAClientTakesAsOneMessage) {
  v1::CreateSessionRequest create;
  v1::Session& session = *create.mutable_session();
  session.set_display_name(std::string(256, 'd'));
  session.set_cache_salt(std::string(64, 's'));
  for (int i = 0; i < 32; ++i) {
    (*session.mutable_annotations())[std::string(60, 'k') + std::to_string(100 + i)] =
        std::string(1024, 'v');
  }
  v1::SamplingParams& sampling = *session.mutable_sampling();
  for (int i = 0; i < 16; ++i) sampling.add_stop(std::string(256, 'x'));
  for (uint32_t id = 0; id < 300; ++id) (*sampling.mutable_logit_bias())[id] = 1;
  constexpr int kSessions = 120;  // about 5 MB
  for (int i = 0; i < kSessions; ++i) {
    create.set_session_id("s" + std::to_string(1000 + i));
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().CreateSession(&context, create, &session).ok());
    session.clear_name();
  }
  v1::ListSessionsRequest request;
  request.set_page_size(1000);
  int listed = 0;
  int page_count = 0;
  do {
    v1::ListSessionsResponse page;
    grpc::ClientContext context;
    const grpc::Status status = harness_.sessions().ListSessions(&context, request, &page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LE(page.ByteSizeLong(), 2u << 20);
    for (const v1::Session& each : page.sessions()) {
      EXPECT_EQ(each.name(), "sessions/s" + std::to_string(1000 + listed++));
    }
    request.set_page_token(page.next_page_token());
    ++page_count;
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, kSessions);
  EXPECT_LE(page_count, 4);  // and pages are not small
}

TEST_F(ServiceTest, UpdateChangesWhatTheMaskNames) {
  v1::UpdateSessionRequest request;
  *request.mutable_session() = harness_.Create("a");
  const std::string etag = request.session().etag();
  request.mutable_session()->set_display_name("named");
  request.mutable_session()->set_priority(77);
  request.mutable_update_mask()->add_paths("display_name");
  v1::Session session;
  {
    grpc::ClientContext context;
    const grpc::Status status = harness_.sessions().UpdateSession(&context, request, &session);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(session.display_name(), "named");
  EXPECT_EQ(session.priority(), 50);
  EXPECT_NE(session.etag(), etag);
  grpc::ClientContext context;  // with the old etag again
  EXPECT_EQ(harness_.sessions().UpdateSession(&context, request, &session).error_code(),
            grpc::StatusCode::ABORTED);
}

TEST_F(ServiceTest, AppendWithAnExpectedCountIsHarmlessToRetry) {
  const int64_t count = harness_.Create("a", "one two three").token_count();
  v1::AppendContentRequest request;
  request.set_name("sessions/a");
  request.mutable_content()->set_text(" four");
  request.set_expected_token_count(count);
  v1::AppendContentResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().AppendContent(&context, request, &response).ok());
  }
  EXPECT_GT(response.appended_token_count(), 0);
  EXPECT_EQ(response.token_count(), count + response.appended_token_count());
  grpc::ClientContext context;
  const grpc::Status stale = harness_.sessions().AppendContent(&context, request, &response);
  EXPECT_EQ(stale.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(stale.error_message(), HasSubstr("expected_token_count"));
  EXPECT_EQ(Get("sessions/a").token_count(), response.token_count());
}

TEST_F(ServiceTest, DecodeResumesFromAnyPosition) {
  const int64_t prompt = harness_.Create("a", "the quick brown fox").token_count();
  const StreamOutcome whole = Decode(DecodeOf("sessions/a", 40));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.first_position, prompt);
  EXPECT_THAT(whole.tokens, SizeIs(40));
  for (const int64_t seen : {0, 1, 17, 39}) {
    v1::DecodeRequest request = DecodeOf("sessions/a", static_cast<uint32_t>(40 - seen));
    request.set_start_position(prompt + seen);
    const StreamOutcome rest = Decode(request);
    ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
    EXPECT_EQ(rest.first_position, prompt + seen);
    EXPECT_THAT(rest.tokens, ElementsAreArray(whole.tokens.begin() + seen, whole.tokens.end()));
  }
  EXPECT_EQ(Get("sessions/a").token_count(), prompt + 40);
}

TEST_F(ServiceTest, ForkAndTruncateContinueAlike) {
  const int64_t prompt = harness_.Create("a", "to be or not to be").token_count();
  const StreamOutcome whole = Decode(DecodeOf("sessions/a", 30));
  v1::ForkSessionRequest fork;
  fork.set_name("sessions/a");
  fork.set_session_id("b");
  fork.set_token_count(prompt + 10);
  v1::Session session;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().ForkSession(&context, fork, &session).ok());
  }
  EXPECT_EQ(session.parent(), "sessions/a");
  EXPECT_EQ(session.token_count(), prompt + 10);
  const StreamOutcome forked = Decode(DecodeOf("sessions/b", 20));
  EXPECT_THAT(forked.tokens, ElementsAreArray(whole.tokens.begin() + 10, whole.tokens.end()));

  v1::TruncateSessionRequest truncate;
  truncate.set_name("sessions/a");
  truncate.set_token_count(prompt + 5);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().TruncateSession(&context, truncate, &session).ok());
  }
  EXPECT_EQ(session.token_count(), prompt + 5);
  const StreamOutcome again = Decode(DecodeOf("sessions/a", 25));
  EXPECT_THAT(again.tokens, ElementsAreArray(whole.tokens.begin() + 5, whole.tokens.end()));
}

TEST_F(ServiceTest, SuspendedAndClearedContextsAreComputedAgain) {
  const int64_t prompt = harness_.Create("a", std::string(200, 'x') + " and so on").token_count();
  Decode(DecodeOf("sessions/a", 5));
  EXPECT_GT(Get("sessions/a").residency().device_tokens(), 0);

  v1::SuspendSessionRequest suspend;
  suspend.set_name("sessions/a");
  suspend.set_tier(v1::TIER_ABSENT);
  v1::Session session;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().SuspendSession(&context, suspend, &session).ok());
  }
  EXPECT_EQ(session.residency().device_tokens(), 0);
  EXPECT_EQ(session.residency().absent_tokens() + session.residency().tail_tokens(), prompt + 5);
  EXPECT_EQ(session.residency().tail_tokens(), (prompt + 5) % 16);

  v1::PrefetchSessionRequest prefetch;
  prefetch.set_name("sessions/a");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.sessions().PrefetchSession(&context, prefetch, &session).ok());
  }
  EXPECT_TRUE(harness_.Eventually(
      [&](const v1::CacheStats&) { return Get("sessions/a").residency().device_tokens() > 0; }));
  const StreamOutcome after = Decode(DecodeOf("sessions/a", 3));
  EXPECT_GT(after.usage.device_tokens(), 0);

  google::protobuf::Empty empty;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.cache().ClearCache(&context, {}, &empty).ok());
  }
  const StreamOutcome cleared = Decode(DecodeOf("sessions/a", 3));
  EXPECT_TRUE(cleared.status.ok());
  EXPECT_EQ(cleared.usage.device_tokens(), 0);
  EXPECT_GT(cleared.usage.recomputed_tokens(), 0);
}

TEST_F(ServiceTest, LookupPrefixCountsWhatIsHeldUnderTheSalt) {
  v1::GenerateRequest request;
  request.mutable_content()->set_text(std::string(300, 'z'));
  request.set_max_tokens(1);
  request.set_cache_salt("one");
  SetGreedy(*request.mutable_sampling());
  ASSERT_TRUE(Generate(request).status.ok());
  v1::LookupPrefixRequest lookup;
  *lookup.mutable_content() = request.content();
  lookup.set_cache_salt("one");
  v1::LookupPrefixResponse held;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(harness_.cache().LookupPrefix(&context, lookup, &held).ok());
  }
  EXPECT_GT(held.token_count(), 0);
  EXPECT_GT(held.device_tokens(), held.token_count() - 17);
  lookup.set_cache_salt("two");
  grpc::ClientContext context;
  ASSERT_TRUE(harness_.cache().LookupPrefix(&context, lookup, &held).ok());
  EXPECT_EQ(held.device_tokens(), 0);
}

TEST_F(ServiceTest, ReadTokensReadsAnyRange) {
  const std::string text = "abcdefg and so on, and so on";
  const int64_t count = harness_.Create("a", text).token_count();
  std::string read_text;
  const std::vector<uint32_t> all = ReadTokens("sessions/a", 0, 0, &read_text);
  EXPECT_EQ(static_cast<int64_t>(all.size()), count);
  EXPECT_EQ(read_text, text);
  const std::vector<uint32_t> part = ReadTokens("sessions/a", 10, 5);
  EXPECT_THAT(part, ElementsAreArray(all.begin() + 10, all.begin() + 15));
  EXPECT_THAT(ReadTokens("sessions/a", count), IsEmpty());
  EXPECT_THAT(ReadTokens("sessions/a", count - 2, 100), SizeIs(2));
}

TEST(ServiceReadTokens, LongSessionsComeInSeveralMessages) {
  ServiceOptions options;
  options.model.context_length = 20'000;
  ServiceHarness harness(options);
  v1::CreateSessionRequest create;
  create.set_session_id("a");
  v1::TokenIds& ids = *create.mutable_content()->mutable_tokens();
  for (uint32_t i = 0; i < 10'000; ++i) ids.add_ids(3 + 'a' + i % 26);  // a byte a token
  v1::Session session;
  grpc::ClientContext create_context;
  ASSERT_TRUE(harness.sessions().CreateSession(&create_context, create, &session).ok());

  v1::ReadTokensRequest request;
  request.set_name("sessions/a");
  for (const int64_t wanted : {0, 9'000}) {
    request.set_token_count(wanted);
    const int64_t expected = wanted == 0 ? ids.ids_size() : wanted;
    grpc::ClientContext context;
    auto stream = harness.sessions().ReadTokens(&context, request);
    v1::ReadTokensResponse message;
    int64_t count = 0;
    int message_count = 0;
    std::string text;
    while (stream->Read(&message)) {
      EXPECT_EQ(message.position(), count);
      for (const uint32_t id : message.token_ids()) EXPECT_EQ(id, ids.ids(count++));
      text += message.text();
      ++message_count;
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_EQ(count, expected);
    EXPECT_EQ(message_count, 3);
    EXPECT_EQ(text.size(), static_cast<size_t>(expected));
  }
}

TEST_F(ServiceTest, StatsCountSessionsStepsAndBlocks) {
  harness_.Create("a", "some words to begin with");
  Decode(DecodeOf("sessions/a", 40));
  const v1::CacheStats stats = harness_.Stats();
  EXPECT_EQ(stats.session_count(), 1);
  EXPECT_GE(stats.steps(), 40);
  EXPECT_GT(stats.forward_time().nanos(), 0);
  ASSERT_GE(stats.tiers_size(), 1);
  EXPECT_EQ(stats.tiers(0).tier(), v1::TIER_DEVICE);
  EXPECT_GT(stats.tiers(0).capacity_blocks(), 0);
  EXPECT_GT(stats.tiers(0).used_blocks(), 0);
  EXPECT_EQ(stats.tiers(0).held_blocks(), 0);
}

TEST_F(ServiceTest, ExplainRestorePlansAndSaysWhenThereIsNothingToTell) {
  const auto explain = [this](const std::string& name, bool last, v1::RestoreReport& report) {
    v1::ExplainRestoreRequest request;
    request.set_name(name);
    request.set_last(last);
    grpc::ClientContext context;
    return harness_.cache().ExplainRestore(&context, request, &report);
  };
  harness_.Create("a", "enough words to fill a block of sixteen tokens, and then some");
  v1::RestoreReport report;
  ASSERT_TRUE(explain("sessions/a", false, report).ok());
  ASSERT_GE(report.blocks_size(), 1);
  EXPECT_EQ(report.blocks(0).tier(), v1::TIER_ABSENT);
  EXPECT_EQ(report.blocks(0).verdict(), v1::BlockDecision::VERDICT_RECOMPUTE);
  EXPECT_FALSE(report.has_actual_time());
  EXPECT_TRUE(report.has_decided_at());
  Decode(DecodeOf("sessions/a", 2));
  ASSERT_TRUE(explain("sessions/a", false, report).ok());
  EXPECT_EQ(report.blocks(0).verdict(), v1::BlockDecision::VERDICT_KEEP);

  const grpc::Status never = explain("sessions/a", true, report);
  EXPECT_EQ(never.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(never.error_message(), HasSubstr("no restore of session 'a'"));
  for (const bool last : {false, true}) {
    EXPECT_EQ(explain("sessions/b", last, report).error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

}  // namespace
}  // namespace cairn
