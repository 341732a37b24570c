// Messages to engine types and back, the errors that name fields, and what errors look like to
// clients. No server here.
#include "service/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "google/rpc/error_details.pb.h"
#include "service/error_details.h"
#include "service/pending_output.h"
#include "service/wire_times.h"

namespace cairn {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

// The field that a request is refused for; "" when it is not.
template <class Message>
std::string BadField(const Message& message) {
  const auto result = FromProto(message);
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(result.status().message(), testing::StartsWith(result.status().field() + ": "));
  return result.status().field();
}

v1::GetSessionRequest Named(const std::string& name) {
  v1::GetSessionRequest request;
  request.set_name(name);
  return request;
}

TEST(WireNames, OnlySessionNamesPass) {
  EXPECT_EQ(FromProto(Named("sessions/a-1"))->id, "a-1");
  EXPECT_EQ(FromProto(Named("sessions/" + std::string(63, 'z')))->id.size(), 63u);
  for (const char* bad :
       {"", "a-1", "sessions/", "sessions", "models/a", "sessions/A", "/sessions/a", "sessions/-a",
        "sessions/a/b", "sessions/a b", "Sessions/a"}) {
    EXPECT_EQ(BadField(Named(bad)), "name") << bad;
  }
  EXPECT_EQ(BadField(Named("sessions/" + std::string(64, 'z'))), "name");
  EXPECT_EQ(SessionName("a-1"), "sessions/a-1");
}

TEST(WireNames, EveryRequestThatNamesASessionChecksTheName) {
  EXPECT_EQ(BadField(v1::DeleteSessionRequest()), "name");
  EXPECT_EQ(BadField(v1::PrefetchSessionRequest()), "name");
  EXPECT_EQ(BadField(v1::ExplainRestoreRequest()), "name");
  EXPECT_EQ(BadField(v1::ForkSessionRequest()), "name");
  EXPECT_EQ(BadField(v1::TruncateSessionRequest()), "name");
  EXPECT_EQ(BadField(v1::AppendContentRequest()), "name");
  EXPECT_EQ(BadField(v1::DecodeRequest()), "name");
  EXPECT_EQ(BadField(v1::ReadTokensRequest()), "name");
  EXPECT_EQ(BadField(v1::SuspendSessionRequest()), "name");
  EXPECT_EQ(BadField(v1::UpdateSessionRequest()), "session.name");
}

TEST(WireContent, TakesTextChatAndTokens) {
  v1::TokenizeRequest request;
  request.mutable_content()->set_text("hello");
  EXPECT_EQ(std::get<std::string>(*FromProto(request)), "hello");

  v1::ChatMessages& chat = *request.mutable_content()->mutable_chat();
  chat.set_omit_generation_prompt(true);
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role("user");
  message.set_content("hi");
  const Content content = *FromProto(request);
  const auto& parsed = std::get<ChatContent>(content);
  EXPECT_TRUE(parsed.omit_generation_prompt);
  ASSERT_EQ(parsed.messages.size(), 1u);
  EXPECT_EQ(parsed.messages[0].role, "user");
  EXPECT_EQ(parsed.messages[0].content, "hi");

  request.mutable_content()->mutable_tokens()->add_ids(7);
  request.mutable_content()->mutable_tokens()->add_ids(4'000'000'000u);
  EXPECT_THAT(std::get<std::vector<uint32_t>>(*FromProto(request)), ElementsAre(7, 4'000'000'000u));
}

TEST(WireContent, EmptyContentIsRefusedWhereItIsGiven) {
  v1::GenerateRequest generate;
  EXPECT_EQ(BadField(generate), "content");
  generate.mutable_content();
  EXPECT_EQ(BadField(generate), "content");
  generate.mutable_content()->set_text("");
  EXPECT_EQ(BadField(generate), "content.text");
  generate.mutable_content()->mutable_chat();
  EXPECT_EQ(BadField(generate), "content.chat.messages");
  generate.mutable_content()->mutable_tokens();
  EXPECT_EQ(BadField(generate), "content.tokens.ids");

  v1::DecodeRequest decode;  // here content may be absent, but not empty
  decode.set_name("sessions/a");
  ASSERT_TRUE(FromProto(decode).ok());
  EXPECT_TRUE(std::holds_alternative<std::monostate>(FromProto(decode)->content));
  decode.mutable_content();
  EXPECT_EQ(BadField(decode), "content");
}

TEST(WireRequests, CountsMustNotBeNegative) {
  v1::DecodeRequest decode;
  decode.set_name("sessions/a");
  decode.set_start_position(-1);
  EXPECT_EQ(BadField(decode), "start_position");
  decode.set_start_position(0);
  decode.set_expected_token_count(-5);
  EXPECT_EQ(BadField(decode), "expected_token_count");

  v1::AppendContentRequest append;
  append.set_name("sessions/a");
  append.mutable_content()->set_text("x");
  append.set_expected_token_count(-1);
  EXPECT_EQ(BadField(append), "expected_token_count");

  v1::ForkSessionRequest fork;
  fork.set_name("sessions/a");
  fork.set_token_count(-1);
  EXPECT_EQ(BadField(fork), "token_count");
  v1::TruncateSessionRequest truncate;
  truncate.set_name("sessions/a");
  truncate.set_token_count(-1);
  EXPECT_EQ(BadField(truncate), "token_count");
  v1::ReadTokensRequest read;
  read.set_name("sessions/a");
  read.set_start_position(-1);
  EXPECT_EQ(BadField(read), "start_position");
  read.set_start_position(0);
  read.set_token_count(-1);
  EXPECT_EQ(BadField(read), "token_count");
  v1::ListSessionsRequest list;
  list.set_page_size(-1);
  EXPECT_EQ(BadField(list), "page_size");
  list.set_page_size(5000);
  EXPECT_EQ(FromProto(list)->page_size, 1000);
}

TEST(WireRequests, AbsentAndZeroAreNotTheSame) {
  v1::DecodeRequest decode;
  decode.set_name("sessions/a");
  EXPECT_EQ(FromProto(decode)->start_position, std::nullopt);
  EXPECT_EQ(FromProto(decode)->expected_token_count, std::nullopt);
  decode.set_start_position(0);
  decode.set_expected_token_count(0);
  EXPECT_EQ(FromProto(decode)->start_position, 0);
  EXPECT_EQ(FromProto(decode)->expected_token_count, 0);

  v1::GenerateRequest generate;
  generate.mutable_content()->set_text("x");
  EXPECT_EQ(FromProto(generate)->priority, 50);
  generate.set_priority(0);
  EXPECT_EQ(FromProto(generate)->priority, 0);

  v1::CreateSessionRequest create;
  EXPECT_EQ(FromProto(create)->settings.priority, 50);
  create.mutable_session()->set_priority(0);
  EXPECT_EQ(FromProto(create)->settings.priority, 0);
}

TEST(WireRequests, TiersAreChecked) {
  v1::SuspendSessionRequest suspend;
  suspend.set_name("sessions/a");
  for (const v1::Tier bad : {v1::TIER_UNSPECIFIED, v1::TIER_DEVICE, v1::TIER_REMOTE}) {
    suspend.set_tier(bad);
    EXPECT_EQ(BadField(suspend), "tier");
  }
  suspend.set_tier(static_cast<v1::Tier>(77));
  EXPECT_EQ(BadField(suspend), "tier");
  suspend.set_tier(v1::TIER_ABSENT);
  EXPECT_EQ(FromProto(suspend)->tier, Tier::kAbsent);

  v1::ClearCacheRequest clear;
  EXPECT_EQ(*FromProto(clear), std::nullopt);
  clear.set_tier(v1::TIER_DISK);
  EXPECT_EQ(*FromProto(clear), Tier::kDisk);
  clear.set_tier(v1::TIER_ABSENT);
  EXPECT_EQ(BadField(clear), "tier");
}

TEST(WireSampling, RoundTripsEveryField) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.top_p = 0.25f;
  params.top_k = 0;
  params.min_p = 0.125f;
  params.repetition_penalty = 1.5f;
  params.presence_penalty = -2.0f;
  params.frequency_penalty = 2.0f;
  params.seed = UINT64_MAX;
  params.stop = {"a", "\n\n"};
  params.stop_token_ids = {1, 2};
  params.ignore_eos = true;
  params.logit_bias = {{3, -100.0f}, {4, 0.5f}};
  params.logprobs = 0;
  EXPECT_EQ(FromProto(ToProto(params)), params);
  EXPECT_EQ(FromProto(ToProto(SamplingParams())), SamplingParams());
}

TEST(WireTimes, RoundTripAndRefuseWhatDoesNotFit) {
  google::protobuf::Timestamp time;
  time.set_seconds(1'700'000'000);
  time.set_nanos(123'456'789);
  const Clock::Wall wall = *TimeFromProto(time, "t");
  EXPECT_EQ(TimeToProto(wall).seconds(), 1'700'000'000);
  EXPECT_EQ(TimeToProto(wall).nanos(), 123'456'789);
  EXPECT_EQ(TimeToProto(Clock::Wall(nanoseconds(-1))).seconds(), -1);
  EXPECT_EQ(TimeToProto(Clock::Wall(nanoseconds(-1))).nanos(), 999'999'999);
  time.set_nanos(1'000'000'000);
  EXPECT_EQ(TimeFromProto(time, "t").status().field(), "t");
  time.set_nanos(-1);
  EXPECT_FALSE(TimeFromProto(time, "t").ok());
  time.set_nanos(0);
  for (const int64_t bad : {std::numeric_limits<int64_t>::max(), int64_t{253'402'300'799},
                            std::numeric_limits<int64_t>::min()}) {
    time.set_seconds(bad);
    EXPECT_FALSE(TimeFromProto(time, "t").ok()) << bad;
  }

  google::protobuf::Duration duration;
  duration.set_seconds(3);
  duration.set_nanos(5);
  EXPECT_EQ(*DurationFromProto(duration, "d"), seconds(3) + nanoseconds(5));
  EXPECT_EQ(DurationToProto(seconds(3) + nanoseconds(5)).nanos(), 5);
  duration.set_nanos(-5);
  EXPECT_EQ(DurationFromProto(duration, "d").status().field(), "d");
  duration.set_nanos(0);
  duration.set_seconds(std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(DurationFromProto(duration, "d").ok());
}

v1::UpdateSessionRequest Update(std::vector<std::string> paths) {
  v1::UpdateSessionRequest request;
  request.mutable_session()->set_name("sessions/a");
  request.mutable_session()->set_display_name("new");
  request.mutable_session()->set_priority(9);
  for (std::string& path : paths) request.mutable_update_mask()->add_paths(std::move(path));
  return request;
}

TEST(WireUpdate, TheMaskChoosesWhatChanges) {
  const SessionPatch patch = FromProto(Update({"priority", "pinned"}))->patch;
  EXPECT_EQ(patch.priority, 9);
  EXPECT_EQ(patch.pinned, false);
  EXPECT_FALSE(patch.display_name);
  EXPECT_FALSE(patch.expiration);
  EXPECT_FALSE(patch.sampling);
  EXPECT_FALSE(patch.annotations);
}

TEST(WireUpdate, WithoutAMaskWhatIsSetChanges) {
  v1::UpdateSessionRequest request = Update({});
  request.clear_update_mask();
  request.mutable_session()->set_etag("e");
  request.mutable_session()->set_token_count(77);  // output only: ignored
  request.mutable_session()->mutable_ttl()->set_seconds(60);
  const UpdateSessionRequest update = *FromProto(request);
  EXPECT_EQ(update.id, "a");
  EXPECT_EQ(update.etag, "e");
  EXPECT_EQ(update.patch.display_name, "new");
  EXPECT_EQ(update.patch.priority, 9);
  EXPECT_EQ(std::get<nanoseconds>(*update.patch.expiration), seconds(60));
  EXPECT_FALSE(update.patch.pinned);
  EXPECT_FALSE(update.cache_salt);
  request.mutable_session()->set_cache_salt("salt");  // immutable: the engine compares
  EXPECT_EQ(FromProto(request)->cache_salt, "salt");
}

TEST(WireUpdate, ExpirationGoesByEitherName) {
  v1::UpdateSessionRequest request = Update({"ttl"});
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*FromProto(request)->patch.expiration));
  request.mutable_session()->mutable_expire_time()->set_seconds(2'000'000'000);
  EXPECT_EQ(BadField(request), "update_mask.paths[0]");
  request.mutable_update_mask()->add_paths("expire_time");
  EXPECT_TRUE(std::holds_alternative<Clock::Wall>(*FromProto(request)->patch.expiration));
  request.mutable_session()->mutable_ttl()->set_nanos(-1'000'000'000);
  EXPECT_EQ(BadField(request), "session.ttl");
}

TEST(WireUpdate, ImmutableAndUnknownFieldsAreRefused) {
  for (const char* bad :
       {"name", "token_count", "create_time", "parent", "etag", "cache_salt",
        "residency.device_tokens", "sampling.temperature", "annotations.a", "", "nonsense", "*"}) {
    EXPECT_EQ(BadField(Update({"priority", bad})), "update_mask.paths[1]") << bad;
  }
  EXPECT_THAT(FromProto(Update({"cache_salt"})).status().message(),
              HasSubstr("cache_salt cannot be changed"));
}

TEST(WireCreate, IdsNamesAndSettings) {
  v1::CreateSessionRequest request;
  request.set_session_id("UPPER");
  EXPECT_EQ(BadField(request), "session_id");
  request.set_session_id("a");
  request.mutable_session()->set_name("sessions/b");
  EXPECT_EQ(BadField(request), "session.name");
  request.mutable_session()->clear_name();
  request.mutable_session()->set_cache_salt("salt");
  request.mutable_session()->set_pinned(true);
  (*request.mutable_session()->mutable_annotations())["k"] = "v";
  request.mutable_session()->mutable_sampling()->set_temperature(0);
  const CreateSessionRequest create = *FromProto(request);
  EXPECT_EQ(create.id, "a");
  EXPECT_EQ(create.cache_salt, "salt");
  EXPECT_TRUE(create.settings.pinned);
  EXPECT_EQ(create.settings.annotations.at("k"), "v");
  EXPECT_EQ(create.settings.sampling.temperature, 0.0f);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(create.content));
}

TEST(WireSession, CarriesEverythingThatASessionHas) {
  SessionInfo info;
  info.id = "a";
  info.settings.display_name = "A";
  info.settings.expiration = nanoseconds(seconds(90));
  info.settings.priority = 0;
  info.settings.annotations = {{"k", "v"}};
  info.token_count = 33;
  info.create_time = Clock::Wall(seconds(10));
  info.update_time = Clock::Wall(seconds(20));
  info.expire_time = Clock::Wall(seconds(110));
  info.state = SessionState::kDecoding;
  info.residency = {.device_tokens = 16, .absent_tokens = 16, .tail_tokens = 1};
  info.parent_id = "p";
  info.etag = "e";
  info.cache_salt = "s";
  const v1::Session session = ToProto(info);
  EXPECT_EQ(session.name(), "sessions/a");
  EXPECT_EQ(session.token_count(), 33);
  EXPECT_EQ(session.ttl().seconds(), 90);
  EXPECT_EQ(session.next_expire_time().seconds(), 110);
  EXPECT_TRUE(session.has_priority());
  EXPECT_EQ(session.priority(), 0);
  EXPECT_EQ(session.state(), v1::Session::STATE_DECODING);
  EXPECT_EQ(session.residency().device_tokens(), 16);
  EXPECT_EQ(session.residency().absent_tokens(), 16);
  EXPECT_EQ(session.residency().tail_tokens(), 1);
  EXPECT_EQ(session.parent(), "sessions/p");
  EXPECT_EQ(session.etag(), "e");
  EXPECT_EQ(session.annotations().at("k"), "v");
  EXPECT_EQ(session.cache_salt(), "s");
}

TEST(WireUsage, CachedTokensAreTheSumOfTheTiers) {
  const v1::Usage usage = ToProto(Usage{.prompt_tokens = 21,
                                        .device_tokens = 1,
                                        .host_tokens = 2,
                                        .disk_tokens = 3,
                                        .remote_tokens = 4,
                                        .recomputed_tokens = 5,
                                        .new_tokens = 6,
                                        .seed = UINT64_MAX});
  EXPECT_EQ(usage.cached_tokens(), 10);
  EXPECT_EQ(usage.prompt_tokens(),
            usage.cached_tokens() + usage.recomputed_tokens() + usage.new_tokens());
  EXPECT_EQ(usage.seed(), UINT64_MAX);
}

TEST(WireStream, TheLastMessageSaysHowItEnded) {
  const StreamUpdate update = {.position = 5,
                               .token_ids = {1, 2},
                               .text = "ab",
                               .logprobs = {{1, -0.5f, {{3, -0.1f, {}}}}, {2, -0.25f, {}}}};
  const v1::DecodeResponse middle = DecodeToProto(update, nullptr);
  EXPECT_EQ(middle.position(), 5);
  EXPECT_EQ(middle.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  EXPECT_FALSE(middle.has_usage());
  ASSERT_EQ(middle.logprobs_size(), 2);
  EXPECT_EQ(middle.logprobs(0).top(0).token_id(), 3u);

  const StreamEnd end = {.finish_reason = FinishReason::kStop,
                         .usage = {.completion_tokens = 2},
                         .stop_token_id = 0,
                         .stop_string = "END"};
  const v1::GenerateResponse last = GenerateToProto(update, &end);
  EXPECT_EQ(last.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(last.usage().completion_tokens(), 2);
  EXPECT_EQ(last.stop_string(), "END");
}

template <class Detail>
std::optional<Detail> DetailOf(const google::rpc::Status& error) {
  for (const google::protobuf::Any& any : error.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

TEST(ErrorDetails, FieldsRetriesAndSessions) {
  const auto bad = ErrorDetails(InvalidField("sampling.temperature", "must be low"), {});
  EXPECT_EQ(bad.code(), 3);
  EXPECT_EQ(bad.message(), "sampling.temperature: must be low");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(bad)->reason(), "INVALID_FIELD");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(bad)->domain(), "cairn");
  const auto violation = DetailOf<google::rpc::BadRequest>(bad)->field_violations(0);
  EXPECT_EQ(violation.field(), "sampling.temperature");
  EXPECT_EQ(violation.description(), "must be low");

  const auto full = ErrorDetails(
      std::move(ResourceExhausted("full")).WithRetryAfter(std::chrono::milliseconds(1500)), {});
  const auto retry = DetailOf<google::rpc::RetryInfo>(full);
  EXPECT_EQ(retry->retry_delay().seconds(), 1);
  EXPECT_EQ(retry->retry_delay().nanos(), 500'000'000);
  EXPECT_FALSE(DetailOf<google::rpc::BadRequest>(full));

  const ErrorSubject subject = {.used = "sessions/a", .made = "sessions/b"};
  const auto missing = DetailOf<google::rpc::ResourceInfo>(ErrorDetails(NotFound("x"), subject));
  EXPECT_EQ(missing->resource_type(), "cairn.v1.Session");
  EXPECT_EQ(missing->resource_name(), "sessions/a");
  const auto there =
      DetailOf<google::rpc::ResourceInfo>(ErrorDetails(Status(Code::kAlreadyExists, "x"), subject));
  EXPECT_EQ(there->resource_name(), "sessions/b");
  EXPECT_FALSE(DetailOf<google::rpc::ResourceInfo>(ErrorDetails(Aborted("x"), subject)));
}

TEST(ErrorDetails, EveryCodeHasAReasonInUpperSnakeCase) {
  for (int code = 1; code <= 15; ++code) {
    const auto error = ErrorDetails(Status(static_cast<Code>(code), "x"), {});
    EXPECT_EQ(error.code(), code);
    const auto info = DetailOf<google::rpc::ErrorInfo>(error);
    ASSERT_TRUE(info);
    EXPECT_THAT(info->reason(), testing::MatchesRegex("[A-Z][A-Z_]+[A-Z]")) << code;
  }
}

// The trailers of a call have a size limit, and strings of a message must be UTF-8.
TEST(ErrorDetails, LongAndBrokenMessagesAreCutToFit) {
  const std::string text = "\xff" + std::string(100'000, 'x');
  const auto error = ErrorDetails(InvalidField(text, text), {.used = text, .made = text});
  EXPECT_LT(error.ByteSizeLong(), 6000u);
  google::rpc::Status again;
  EXPECT_TRUE(again.ParseFromString(error.SerializeAsString()));
}

TEST(PendingOutput, MergesWhatWaits) {
  PendingOutput pending(2);
  EXPECT_TRUE(pending.empty());
  pending.Add({.position = 7, .token_ids = {1}, .text = "a", .logprobs = {{1, -1, {}}}});
  pending.Add({.position = 8, .token_ids = {2}, .text = "b", .logprobs = {{2, -2, {}}}});
  EXPECT_FALSE(pending.full());
  pending.Add({.position = 9, .token_ids = {3}, .text = "", .logprobs = {{3, -3, {}}}});
  EXPECT_TRUE(pending.full());
  const StreamUpdate update = pending.Take();
  EXPECT_EQ(update.position, 7);
  EXPECT_THAT(update.token_ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(update.text, "ab");
  ASSERT_EQ(update.logprobs.size(), 3u);
  EXPECT_EQ(update.logprobs[2].token_id, 3u);
  EXPECT_TRUE(pending.empty());
  EXPECT_FALSE(pending.full());
  EXPECT_EQ(pending.Take().position, 10);  // of the next token
}

}  // namespace
}  // namespace cairn
