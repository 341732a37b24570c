// Requests that a server must refuse: each names the code and the field, in the message and in
// google.rpc.BadRequest.
#include <limits>

#include "tests/service_harness.h"

namespace cairn {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

class ServiceErrorsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    harness_ = new ServiceHarness();
    harness_->Create("a", "some text");
  }
  static void TearDownTestSuite() {
    delete harness_;
    harness_ = nullptr;
  }

  template <class Request, class Response>
  using Method = grpc::Status (v1::SessionService::Stub::*)(grpc::ClientContext*, const Request&,
                                                            Response*);
  template <class Request, class Response>
  static grpc::Status Call(Method<Request, Response> method, const Request& request) {
    grpc::ClientContext context;
    Response response;
    return (harness_->sessions().*method)(&context, request, &response);
  }
  static grpc::Status Decode(const v1::DecodeRequest& request) {
    grpc::ClientContext context;
    return ReadAll(harness_->sessions().Decode(&context, request)).status;
  }
  static grpc::Status Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return ReadAll(harness_->decoder().Generate(&context, request)).status;
  }
  static grpc::Status Tokenize(const v1::Content& content) {
    v1::TokenizeRequest request;
    *request.mutable_content() = content;
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    return harness_->decoder().Tokenize(&context, request, &response);
  }

  static ServiceHarness* harness_;
};
ServiceHarness* ServiceErrorsTest::harness_ = nullptr;

// What every RPC that names a session answers to `name`.
class NamedSessions : public ServiceErrorsTest {
 protected:
  template <class Request>
  static Request Named(const std::string& name) {
    Request request;
    request.set_name(name);
    return request;
  }
  static std::vector<grpc::Status> CallEverything(const std::string& name) {
    using Stub = v1::SessionService::Stub;
    auto append = Named<v1::AppendContentRequest>(name);
    append.mutable_content()->set_text("x");
    auto suspend = Named<v1::SuspendSessionRequest>(name);
    suspend.set_tier(v1::TIER_ABSENT);
    v1::UpdateSessionRequest update;
    update.mutable_session()->set_name(name);
    update.mutable_session()->set_display_name("x");
    std::vector<grpc::Status> answers = {
        Call(&Stub::GetSession, Named<v1::GetSessionRequest>(name)),
        Call(&Stub::DeleteSession, Named<v1::DeleteSessionRequest>(name)),
        Call(&Stub::ForkSession, Named<v1::ForkSessionRequest>(name)),
        Call(&Stub::TruncateSession, Named<v1::TruncateSessionRequest>(name)),
        Call(&Stub::AppendContent, append),
        Call(&Stub::SuspendSession, suspend),
        Call(&Stub::PrefetchSession, Named<v1::PrefetchSessionRequest>(name)),
        Call(&Stub::UpdateSession, update),
        Decode(Named<v1::DecodeRequest>(name)),
    };
    grpc::ClientContext context;
    auto stream = harness_->sessions().ReadTokens(&context, Named<v1::ReadTokensRequest>(name));
    v1::ReadTokensResponse message;
    EXPECT_FALSE(stream->Read(&message));
    answers.push_back(stream->Finish());
    return answers;
  }
};

TEST_F(NamedSessions, AnUnknownSessionIsNotFoundAndNamed) {
  for (const grpc::Status& status : CallEverything("sessions/nobody")) {
    EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("nobody"));
    const auto resource = DetailOf<google::rpc::ResourceInfo>(status);
    ASSERT_TRUE(resource) << status.error_message();
    EXPECT_EQ(resource->resource_name(), "sessions/nobody");
    EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status)->reason(), "SESSION_NOT_FOUND");
  }
}

TEST_F(NamedSessions, AForeignNameIsABadField) {
  for (const char* name : {"models/a", "a", "", "sessions/", "sessions/Not-Lower"}) {
    for (const grpc::Status& status : CallEverything(name)) {
      EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << name;
      EXPECT_THAT(FieldOf(status), testing::AnyOf("name", "session.name")) << name;
    }
  }
}

TEST_F(ServiceErrorsTest, AStaleCountIsAborted) {
  v1::AppendContentRequest append;
  append.set_name("sessions/a");
  append.mutable_content()->set_text("x");
  append.set_expected_token_count(12345);
  const grpc::Status status = Call(&v1::SessionService::Stub::AppendContent, append);
  EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("expected_token_count is 12345"));
  v1::DecodeRequest decode;
  decode.set_name("sessions/a");
  decode.mutable_content()->set_text("x");
  decode.set_expected_token_count(0);
  EXPECT_EQ(Decode(decode).error_code(), StatusCode::ABORTED);
}

TEST_F(ServiceErrorsTest, TokenIdsMustBeInTheVocabulary) {
  v1::Content content;
  content.mutable_tokens()->add_ids(5);
  content.mutable_tokens()->add_ids(320);
  v1::GenerateRequest generate;
  *generate.mutable_content() = content;
  ExpectBadField(Generate(generate), "content.tokens.ids[1]");
  v1::AppendContentRequest append;
  append.set_name("sessions/a");
  *append.mutable_content() = content;
  ExpectBadField(Call(&v1::SessionService::Stub::AppendContent, append), "content.tokens.ids[1]");
  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(UINT32_MAX);
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  ExpectBadField(harness_->decoder().Detokenize(&context, detokenize, &text), "ids[0]");
}

TEST_F(ServiceErrorsTest, EmptyContentIsRefused) {
  ExpectBadField(Generate(v1::GenerateRequest()), "content");
  v1::Content content;
  ExpectBadField(Tokenize(content), "content");
  content.set_text("");
  ExpectBadField(Tokenize(content), "content.text");
  content.mutable_tokens();
  ExpectBadField(Tokenize(content), "content.tokens.ids");
  content.mutable_chat();
  ExpectBadField(Tokenize(content), "content.chat.messages");
}

TEST_F(ServiceErrorsTest, TextMustBeUtf8) {
  v1::GenerateRequest generate;
  generate.mutable_content()->set_text("half a character: \xe2\x82");
  ExpectBadField(Generate(generate), "content.text");
  v1::AppendContentRequest append;
  append.set_name("sessions/a");
  append.mutable_content()->mutable_chat()->add_messages()->set_content("\xff");
  ExpectBadField(Call(&v1::SessionService::Stub::AppendContent, append),
                 "content.chat.messages[0].content");
  ExpectBadField(Call(&v1::SessionService::Stub::GetSession,
                      [] {
                        v1::GetSessionRequest request;
                        request.set_name("sessions/\xc0\xaf");
                        return request;
                      }()),
                 "name");
}

v1::GenerateRequest Sampled(const std::function<void(v1::SamplingParams&)>& set) {
  v1::GenerateRequest request;
  request.mutable_content()->set_text("x");
  set(*request.mutable_sampling());
  return request;
}

TEST_F(ServiceErrorsTest, SamplingIsBounded) {
  using S = v1::SamplingParams;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* field;
    std::function<void(S&)> set;
  } cases[] = {
      {"sampling.temperature", [](S& s) { s.set_temperature(-1); }},
      {"sampling.temperature", [=](S& s) { s.set_temperature(nan); }},
      {"sampling.temperature", [](S& s) { s.set_temperature(2.5f); }},
      {"sampling.top_p", [](S& s) { s.set_top_p(0); }},
      {"sampling.top_p", [=](S& s) { s.set_top_p(nan); }},
      {"sampling.min_p", [](S& s) { s.set_min_p(1.5f); }},
      {"sampling.repetition_penalty", [](S& s) { s.set_repetition_penalty(0); }},
      {"sampling.presence_penalty", [](S& s) { s.set_presence_penalty(3); }},
      {"sampling.frequency_penalty", [=](S& s) { s.set_frequency_penalty(nan); }},
      {"sampling.stop",
       [](S& s) {
         for (int i = 0; i < 17; ++i) s.add_stop("x");
       }},
      {"sampling.stop[0]", [](S& s) { s.add_stop(std::string(257, 'x')); }},
      {"sampling.stop[0]", [](S& s) { s.add_stop(""); }},
      {"sampling.stop_token_ids[0]", [](S& s) { s.add_stop_token_ids(320); }},
      {"sampling.logit_bias[320]", [](S& s) { (*s.mutable_logit_bias())[320] = 1; }},
      {"sampling.logit_bias[1]", [=](S& s) { (*s.mutable_logit_bias())[1] = nan; }},
      {"sampling.logprobs", [](S& s) { s.set_logprobs(21); }},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.field);
    ExpectBadField(Generate(Sampled(bad.set)), bad.field);
    v1::CreateSessionRequest create;
    bad.set(*create.mutable_session()->mutable_sampling());
    ExpectBadField(Call(&v1::SessionService::Stub::CreateSession, create),
                   std::string("session.") + bad.field);
  }
}

TEST_F(ServiceErrorsTest, ThePromptMustFitTheContext) {
  v1::GenerateRequest generate;
  for (int i = 0; i < 2048; ++i) generate.mutable_content()->mutable_tokens()->add_ids(5);
  ExpectBadField(Generate(generate), "content");
  v1::AppendContentRequest append;
  append.set_name("sessions/a");
  *append.mutable_content() = generate.content();
  ExpectBadField(Call(&v1::SessionService::Stub::AppendContent, append), "content");
}

TEST_F(ServiceErrorsTest, MaxTokensMustFitTheContext) {
  v1::GenerateRequest generate;
  generate.mutable_content()->set_text("x");
  generate.set_max_tokens(1'000'000);
  ExpectBadField(Generate(generate), "max_tokens");
  v1::DecodeRequest decode;
  decode.set_name("sessions/a");
  decode.set_max_tokens(1'000'000);
  ExpectBadField(Decode(decode), "max_tokens");
}

TEST_F(ServiceErrorsTest, ALargeMessageIsOverALimit) {
  v1::Content content;
  content.set_text(std::string(64u << 20, 'x'));
  const grpc::Status status = Tokenize(content);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("33554432"));
}

TEST_F(ServiceErrorsTest, ATextThatNoContextHoldsIsRefusedByItsBytes) {
  // 2,048 tokens, none of more bytes than the vocabulary's longest.
  v1::Content text;
  text.set_text(std::string(1 << 20, 'x'));
  v1::Content chat;
  for (const char* role : {"user", "assistant"}) {
    chat.mutable_chat()->add_messages()->set_role(role);
    chat.mutable_chat()->mutable_messages()->rbegin()->set_content(std::string(1 << 19, 'x'));
  }
  const std::pair<const char*, v1::Content> cases[] = {{"content.text", text},
                                                       {"content.chat.messages", chat}};
  for (const auto& [field, content] : cases) {
    SCOPED_TRACE(field);
    v1::GenerateRequest generate;
    *generate.mutable_content() = content;
    v1::AppendContentRequest append;
    append.set_name("sessions/a");
    *append.mutable_content() = content;
    v1::CreateSessionRequest create;
    *create.mutable_content() = content;
    for (const grpc::Status& status : {Tokenize(content), Generate(generate),
                                       Call(&v1::SessionService::Stub::AppendContent, append),
                                       Call(&v1::SessionService::Stub::CreateSession, create)}) {
      ExpectBadField(status, field);
      EXPECT_THAT(status.error_message(), HasSubstr("1048576 bytes"));
      EXPECT_THAT(status.error_message(), HasSubstr("2048 tokens holds at most"));
    }
  }
}

TEST_F(ServiceErrorsTest, MillionsOfFieldsAreRefused) {
  v1::GenerateRequest generate;
  generate.mutable_content()->set_text("x");
  for (int i = 0; i < 1'000'000; ++i) generate.mutable_sampling()->add_stop();
  ExpectBadField(Generate(generate), "sampling.stop");
  v1::DetokenizeRequest detokenize;
  detokenize.mutable_ids()->Resize(1'000'000, 5);
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  ExpectBadField(harness_->decoder().Detokenize(&context, detokenize, &text), "ids");
}

// A Decode that is refused has added nothing, so that asking again adds its content once.
TEST(ServiceRequests, ADecodeThatIsRefusedLeavesItsSessionAsItWas) {
  ServiceOptions options;
  options.device_memory_bytes = 64 << 10;
  ServiceHarness harness(options);
  const int64_t before = harness.Create("a", "some text").token_count();
  v1::DecodeRequest request;
  request.set_name("sessions/a");
  request.set_max_tokens(4);
  SetGreedy(*request.mutable_sampling());
  const auto decode = [&](size_t content_count) {
    request.clear_content();
    for (size_t i = 0; i < content_count; ++i) {
      request.mutable_content()->mutable_tokens()->add_ids(5);
    }
    grpc::ClientContext context;
    return ReadAll(harness.sessions().Decode(&context, request));
  };
  const auto token_count = [&] {
    v1::GetSessionRequest get;
    get.set_name("sessions/a");
    v1::Session session;
    grpc::ClientContext context;
    EXPECT_TRUE(harness.sessions().GetSession(&context, get, &session).ok());
    return session.token_count();
  };
  for (int turn = 0; turn < 2; ++turn) {
    const StreamOutcome refused = decode(1000);
    EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.status.error_message(), HasSubstr("--device-memory"));
    EXPECT_EQ(token_count(), before);
  }
  EXPECT_EQ(decode(10).tokens.size(), 4u);
  EXPECT_EQ(token_count(), before + 14);
}

TEST(ServiceRequests, LargeOnesHaveABoundTogether) {
  ServiceOptions options;
  options.request_memory_max = 1 << 20;
  ServiceHarness harness(options);
  v1::TokenizeRequest request;
  request.mutable_content()->set_text(std::string(1 << 20, 'x'));
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = harness.decoder().Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status));
  harness.Create("a", "a small one");  // passes
}

TEST_F(ServiceErrorsTest, PagesComeFromThePageBefore) {
  v1::ListSessionsRequest list;
  list.set_page_token("from nowhere");
  ExpectBadField(Call(&v1::SessionService::Stub::ListSessions, list), "page_token");
  list.clear_page_token();
  list.set_page_size(-1);
  ExpectBadField(Call(&v1::SessionService::Stub::ListSessions, list), "page_size");
}

TEST_F(ServiceErrorsTest, ImmutableFieldsCannotBeUpdated) {
  for (const char* path : {"cache_salt", "name", "token_count", "parent"}) {
    v1::UpdateSessionRequest update;
    update.mutable_session()->set_name("sessions/a");
    update.mutable_session()->set_cache_salt("other");
    update.mutable_update_mask()->add_paths(path);
    const grpc::Status status = Call(&v1::SessionService::Stub::UpdateSession, update);
    ExpectBadField(status, "update_mask.paths[0]");
    EXPECT_THAT(status.error_message(), HasSubstr(path));
  }
}

TEST_F(ServiceErrorsTest, ImmutableFieldsCannotBeUpdatedWithoutAMaskEither) {
  v1::CreateSessionRequest create;
  create.set_session_id("salted");
  create.mutable_session()->set_cache_salt("salt");
  v1::UpdateSessionRequest update;
  grpc::ClientContext create_context;
  ASSERT_TRUE(
      harness_->sessions().CreateSession(&create_context, create, update.mutable_session()).ok());
  // A session that was read can be sent back, with what is output only in it.
  update.mutable_session()->clear_etag();
  update.mutable_session()->set_display_name("named");
  update.mutable_session()->set_parent("sessions/nobody");
  v1::Session updated;
  grpc::ClientContext context;
  const grpc::Status status = harness_->sessions().UpdateSession(&context, update, &updated);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(updated.display_name(), "named");
  EXPECT_EQ(updated.parent(), "");

  update.mutable_session()->set_cache_salt("another");
  update.mutable_session()->set_display_name("renamed");
  ExpectBadField(Call(&v1::SessionService::Stub::UpdateSession, update), "session.cache_salt");
  v1::GetSessionRequest get;
  get.set_name("sessions/salted");
  grpc::ClientContext get_context;
  ASSERT_TRUE(harness_->sessions().GetSession(&get_context, get, &updated).ok());
  EXPECT_EQ(updated.display_name(), "named");
}

TEST_F(ServiceErrorsTest, SettingsAreBounded) {
  using S = v1::Session;
  const struct {
    const char* field;
    std::function<void(S&)> set;
  } cases[] = {
      {"session.priority", [](S& s) { s.set_priority(101); }},
      {"session.priority", [](S& s) { s.set_priority(-1); }},
      {"session.display_name", [](S& s) { s.set_display_name(std::string(257, 'x')); }},
      {"session.ttl", [](S& s) { s.mutable_ttl()->set_seconds(0); }},
      {"session.ttl", [](S& s) { s.mutable_ttl()->set_seconds(INT64_MAX); }},
      {"session.expire_time", [](S& s) { s.mutable_expire_time()->set_seconds(1000); }},
      {"session.expire_time", [](S& s) { s.mutable_expire_time()->set_seconds(-7'500'000'000); }},
      {"session.expire_time", [](S& s) { s.mutable_expire_time()->set_nanos(-1); }},
      {"session.annotations",
       [](S& s) {
         for (int i = 0; i < 33; ++i) (*s.mutable_annotations())[std::to_string(i)] = "";
       }},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(bad.field);
    v1::CreateSessionRequest create;
    bad.set(*create.mutable_session());
    ExpectBadField(Call(&v1::SessionService::Stub::CreateSession, create), bad.field);
  }
}

TEST_F(ServiceErrorsTest, PositionsMustExist) {
  v1::DecodeRequest decode;
  decode.set_name("sessions/a");
  decode.set_start_position(1'000'000);
  ExpectBadField(Decode(decode), "start_position");
  v1::TruncateSessionRequest truncate;
  truncate.set_name("sessions/a");
  truncate.set_token_count(1'000'000);
  ExpectBadField(Call(&v1::SessionService::Stub::TruncateSession, truncate), "token_count");
  v1::ForkSessionRequest fork;
  fork.set_name("sessions/a");
  fork.set_token_count(1'000'000);
  ExpectBadField(Call(&v1::SessionService::Stub::ForkSession, fork), "token_count");
}

}  // namespace
}  // namespace cairn
