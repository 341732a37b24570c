// The server as whoever operates it sees it: its start, its health, its patience with pings, and
// how it drains.
#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "tests/http2_pinger.h"
#include "tests/service_harness.h"

namespace cairn {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

enum class Health { kServing, kNotServing, kUnknown };

using Channel = std::shared_ptr<grpc::Channel>;

// A unary call in bytes.
grpc::Status Call(const Channel& channel, const std::string& method, const std::string& bytes,
                  grpc::ByteBuffer* response) {
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ClientContext context;
  std::promise<grpc::Status> done;
  grpc::GenericStub stub(channel);
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, response,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

constexpr const char* kCheck = "/grpc.health.v1.Health/Check";

// Both messages of Check have one field.
Health CheckHealth(const Channel& channel, const std::string& service) {
  const std::string bytes =
      service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  grpc::ByteBuffer response;
  if (!Call(channel, kCheck, bytes, &response).ok()) return Health::kUnknown;
  grpc::Slice answer;
  if (!response.DumpToSingleSlice(&answer).ok() || answer.size() != 2) return Health::kUnknown;
  return answer.begin()[1] == 1 ? Health::kServing : Health::kNotServing;
}

Health CheckHealth(ServiceHarness& harness, const std::string& service) {
  return CheckHealth(harness.channel(), service);
}

Channel HealthChannel(ServiceHarness& harness) {
  return grpc::CreateChannel(harness.server().health_address(), grpc::InsecureChannelCredentials());
}

// Waits until `service` has `health`; false after a minute.
bool EventuallyHas(const Channel& channel, const std::string& service, Health health) {
  for (int i = 0; i < 1200; ++i) {
    if (CheckHealth(channel, service) == health) return true;
    std::this_thread::sleep_for(milliseconds(50));
  }
  return false;
}

constexpr const char* kHealthNames[] = {"",
                                        "liveness",
                                        "readiness",
                                        "cairn.v1.SessionService",
                                        "cairn.v1.DecodeService",
                                        "cairn.v1.CacheService",
                                        "cairn.v1.ModelService"};

const ListenAddress kAnyPort = {.host = "127.0.0.1", .port = 0};

// Takes its tokens only once it is let go, and so stalls the engine's thread.
class StallingSink final : public TokenSink {
 public:
  bool OnTokens(StreamUpdate) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_let_go_; });
    return true;
  }
  void OnEnd(StreamEnd end) override { ended_.set_value(std::move(end)); }

  void LetGo() {
    std::lock_guard lock(mutex_);
    is_let_go_ = true;
    changed_.notify_all();
  }
  StreamEnd End() { return ended_.get_future().get(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_let_go_ = false;
  std::promise<StreamEnd> ended_;
};

TEST(ServiceHealth, AnEngineThatStallsIsNotServing) {
  ServiceOptions options;
  options.watchdog_max = milliseconds(300);
  options.health_listen = kAnyPort;
  ServiceHarness harness(options);
  const auto all_have =
      [channels = std::vector<Channel>{harness.channel(), HealthChannel(harness)}](Health health) {
        for (const Channel& channel : channels) {
          for (const char* name : kHealthNames) {
            EXPECT_TRUE(EventuallyHas(channel, name, health)) << name;
          }
        }
      };
  all_have(Health::kServing);
  const auto sink = std::make_shared<StallingSink>();
  harness.engine().Generate({.content = std::string("a stall"), .max_tokens = 3}, sink);
  all_have(Health::kNotServing);
  sink->LetGo();
  EXPECT_TRUE(sink->End().status.ok());
  all_have(Health::kServing);
}

TEST(ServiceHealth, TheHealthPortServesHealthAlone) {
  ServiceOptions options;
  options.health_listen = kAnyPort;
  ServiceHarness harness(options);
  ASSERT_NE(harness.server().health_address(), harness.server().address());
  const Channel channel = HealthChannel(harness);
  for (const char* name : kHealthNames) {
    EXPECT_EQ(CheckHealth(channel, name), Health::kServing) << name;
  }
  grpc::ByteBuffer response;
  EXPECT_EQ(Call(channel, kCheck, "\x0a\x06nobody", &response).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Call(channel, kCheck, std::string(1025, 'x'), &response).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  for (const char* method : {"/cairn.v1.ModelService/GetModel",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_EQ(Call(channel, method, "", &response).error_code(), StatusCode::UNIMPLEMENTED)
        << method;
  }
}

TEST(ServiceHealth, WithoutOneThereIsNoHealthPort) {
  ServiceHarness harness;
  EXPECT_EQ(harness.server().health_address(), "");
}

TEST(ServiceKeepalive, APingEveryTenSecondsWithoutCallsIsFine) {
  ServiceHarness harness;
  Http2Pinger pinger(harness.server().port());
  // gRPC forgives two pings that come too early, and the first comes after none.
  for (int i = 0; i < 4; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::seconds(10));
    ASSERT_EQ(pinger.Ping(), Http2Pinger::Answer::kPong) << pinger.reason();
  }
}

TEST(ServiceKeepalive, AFloodOfPingsIsNot) {
  ServiceHarness harness;
  Http2Pinger pinger(harness.server().port());
  int count = 0;
  auto answer = Http2Pinger::Answer::kPong;
  for (; answer == Http2Pinger::Answer::kPong && count < 100; ++count) answer = pinger.Ping();
  EXPECT_EQ(answer, Http2Pinger::Answer::kGoAway);
  EXPECT_EQ(pinger.reason(), "too_many_pings");
}

TEST(ServiceDrain, FinishesWhatRunsAndRefusesTheRest) {
  ServiceOptions options = LongContext();
  options.health_listen = kAnyPort;
  ServiceHarness harness(options);
  const Channel health = HealthChannel(harness);
  for (const char* name : kHealthNames) {
    EXPECT_EQ(CheckHealth(harness, name), Health::kServing) << name;
  }
  EXPECT_EQ(CheckHealth(harness, "nobody"), Health::kUnknown);

  constexpr uint32_t kTokens = 1000;  // with 20 logprobs, more than the connection holds:
  v1::GenerateRequest wordy = Request("slowly", kTokens);
  wordy.mutable_sampling()->set_logprobs(20);  // the stream ends only when it is read
  grpc::ClientContext context;
  v1::GenerateResponse message;
  auto running = harness.decoder().Generate(&context, wordy);
  ASSERT_TRUE(running->Read(&message));
  auto drained =
      std::async(std::launch::async, [&] { harness.server().Drain(std::chrono::seconds(60)); });
  while (CheckHealth(harness, "") == Health::kServing) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(CheckHealth(harness, "readiness"), Health::kNotServing);
  EXPECT_EQ(CheckHealth(harness, "liveness"), Health::kServing);
  StreamOutcome refused;
  do {  // health goes first
    grpc::ClientContext refused_context;
    refused = ReadAll(harness.decoder().Generate(&refused_context, Request("too late", 1)));
  } while (refused.status.ok());
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(DetailOf<google::rpc::ErrorInfo>(refused.status));

  int64_t count = message.token_ids_size();
  while (running->Read(&message)) count += message.token_ids_size();
  EXPECT_TRUE(running->Finish().ok());
  EXPECT_EQ(count, kTokens);
  EXPECT_EQ(message.finish_reason(), v1::FINISH_REASON_LENGTH);
  drained.get();
  EXPECT_EQ(CheckHealth(health, "readiness"), Health::kNotServing);  // it answers to the very end
  EXPECT_EQ(CheckHealth(health, "liveness"), Health::kServing);
}

TEST(ServiceDrain, EveryStreamThatOutlivesTheGraceSaysWhyItEnded) {
  constexpr int kStreams = 60;
  ServiceHarness harness(LongContext());
  std::atomic<int> started = 0;
  std::vector<std::future<grpc::Status>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(std::async(std::launch::async, [&, i] {
      grpc::ClientContext context;
      auto stream =
          harness.decoder().Generate(&context, Request("for ever " + std::to_string(i), kForever));
      v1::GenerateResponse message;
      if (stream->Read(&message)) ++started;
      while (stream->Read(&message)) {
      }
      return stream->Finish();
    }));
  }
  while (started < kStreams) std::this_thread::sleep_for(milliseconds(1));
  const auto begin = std::chrono::steady_clock::now();
  harness.server().Drain(milliseconds(100));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  for (auto& stream : streams) {
    const grpc::Status status = stream.get();
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
    const auto info = DetailOf<google::rpc::ErrorInfo>(status);
    ASSERT_TRUE(info) << "a bare " << status.error_code() << ": " << status.error_message();
    EXPECT_EQ(info->reason(), "SERVER_DRAINING");
  }
}

TEST(ServerStart, APortInUseIsNamed) {
  ServiceHarness harness;
  const ListenAddress taken = {.host = "127.0.0.1",
                               .port = static_cast<uint16_t>(harness.server().port())};
  const auto expect_refused = [&](const ServerOptions& options, const std::string& flag) {
    const Result<std::unique_ptr<Server>> second = Server::Start(options, harness.engine());
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), Code::kUnavailable);
    EXPECT_THAT(second.status().message(), testing::StartsWith(flag + ": "));
    EXPECT_THAT(second.status().message(), testing::HasSubstr(taken.ToString()));
    EXPECT_THAT(second.status().message(), testing::HasSubstr("in use"));
  };
  expect_refused({.listen = taken}, "--listen");
  expect_refused({.listen = kAnyPort, .health_listen = taken}, "--health-listen");
}

}  // namespace
}  // namespace cairn
