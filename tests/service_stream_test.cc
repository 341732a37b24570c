// Streams in time, over real gRPC: clients that cancel, are late, are slow or many.
#include <atomic>
#include <future>
#include <thread>

#include "base/rng.h"
#include "tests/service_harness.h"

namespace cairn {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using testing::SizeIs;

StreamOutcome Generate(ServiceHarness& harness, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return ReadAll(harness.decoder().Generate(&context, request));
}

bool NothingIsHeld(const v1::CacheStats& stats) {
  return stats.running_count() == 0 && stats.waiting_count() == 0 &&
         stats.tiers(0).held_blocks() == 0;
}

// A stream that was read for a while; it goes on until it is cancelled or this ends.
struct OpenStream {
  explicit OpenStream(ServiceHarness& harness, const v1::GenerateRequest& request)
      : reader(harness.decoder().Generate(&context, request)) {}
  bool Read() { return reader->Read(&message); }

  grpc::ClientContext context;
  v1::GenerateResponse message;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
};

TEST(ServiceStream, ACancelledStreamReleasesEverything) {
  ServiceHarness harness(LongContext());
  OpenStream stream(harness, Request("on and on", kForever));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream.Read());
  EXPECT_EQ(harness.Stats().running_count(), 1);
  stream.context.TryCancel();
  EXPECT_EQ(stream.reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(harness.Eventually(NothingIsHeld));
}

TEST(ServiceStream, ReadTokensEndsWhereTheSessionEndedWhenItBegan) {
  ServiceHarness harness(LongContext());
  const std::string name = harness.Create("a", "on and on").name();
  v1::DecodeRequest decode;
  decode.set_name(name);
  decode.set_max_tokens(kForever);
  SetGreedy(*decode.mutable_sampling());
  grpc::ClientContext decoding;
  const auto stream = harness.sessions().Decode(&decoding, decode);
  v1::DecodeResponse decoded;
  ASSERT_TRUE(stream->Read(&decoded));
  std::thread reader([&] {
    while (stream->Read(&decoded)) {
    }
  });
  v1::ReadTokensRequest request;
  request.set_name(name);
  for (const int64_t token_count : {int64_t{0}, int64_t{kForever}}) {
    request.set_token_count(token_count);
    grpc::ClientContext context;
    const auto tokens = harness.sessions().ReadTokens(&context, request);
    v1::ReadTokensResponse message;
    ASSERT_TRUE(tokens->Read(&message));
    std::this_thread::sleep_for(milliseconds(20));  // the session grows
    const bool goes_on = tokens->Read(&message);
    EXPECT_FALSE(goes_on) << "at " << message.position();
    if (goes_on) context.TryCancel();  // or it would, for as long as the session grows
    EXPECT_EQ(tokens->Finish().ok(), !goes_on);
  }
  EXPECT_EQ(harness.Stats().running_count(), 1);
  decoding.TryCancel();
  reader.join();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
}

TEST(ServiceStream, AThousandCancelsAtRandomMomentsLeaveNothingHeld) {
  ServiceHarness harness(LongContext());
  std::atomic<int> failures = 0;
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      Rng rng(client);
      for (int i = 0; i < 250; ++i) {
        OpenStream stream(harness, Request("cancel me " + std::to_string(i), 1000));
        std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(4000)));
        stream.context.TryCancel();
        while (stream.Read()) {
        }
        const StatusCode code = stream.reader->Finish().error_code();
        if (code != StatusCode::CANCELLED && code != StatusCode::OK) ++failures;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(harness.Eventually(NothingIsHeld));
  EXPECT_TRUE(Generate(harness, Request("still alive", 10)).status.ok());
}

TEST(ServiceStream, ADeadlineEndsTheStreamInTheEngine) {
  ServiceHarness harness(LongContext());
  OpenStream stream(harness, Request("x", 1));  // warm
  while (stream.Read()) {
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  const StreamOutcome late =
      ReadAll(harness.decoder().Generate(&context, Request("on and on", kForever)));
  EXPECT_EQ(late.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(late.tokens.size(), 0u);
  EXPECT_TRUE(harness.Eventually(NothingIsHeld));
}

TEST(ServiceStream, ADecodeThatWasCutContinuesWhereItWasCut) {
  ServiceHarness harness(LongContext());
  const int64_t prompt = harness.Create("whole", "it was a dark night").token_count();
  harness.Create("cut", "it was a dark night");
  v1::DecodeRequest request;
  request.set_name("sessions/whole");
  request.set_max_tokens(3000);
  request.mutable_sampling()->set_seed(5);
  request.mutable_sampling()->set_ignore_eos(true);
  grpc::ClientContext context;
  const StreamOutcome whole = ReadAll(harness.sessions().Decode(&context, request));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();

  request.set_name("sessions/cut");
  std::vector<uint32_t> tokens;
  std::string text;
  for (int cuts = 0; tokens.size() < 3000; ++cuts) {
    request.set_start_position(prompt + static_cast<int64_t>(tokens.size()));
    request.set_max_tokens(static_cast<uint32_t>(3000 - tokens.size()));
    grpc::ClientContext cut_context;
    auto stream = harness.sessions().Decode(&cut_context, request);
    v1::DecodeResponse message;
    const size_t enough = tokens.size() + (cuts < 5 ? 200 : 3000);
    while (tokens.size() < enough && stream->Read(&message)) {
      EXPECT_EQ(message.position(), prompt + static_cast<int64_t>(tokens.size()));
      tokens.insert(tokens.end(), message.token_ids().begin(), message.token_ids().end());
      text += message.text();
    }
    if (tokens.size() >= 3000) break;
    cut_context.TryCancel();
    const StatusCode code = stream->Finish().error_code();
    // Until the engine has heard of the cancel, another stream of this session is refused.
    ASSERT_TRUE(code == StatusCode::CANCELLED || code == StatusCode::ABORTED || code == 0) << code;
  }
  EXPECT_EQ(tokens, whole.tokens);
  EXPECT_EQ(text, whole.text);
}

TEST(ServiceStream, ASecondDecodeOfASessionIsAborted) {
  ServiceHarness harness(LongContext());
  harness.Create("a", "busy");
  v1::DecodeRequest request;
  request.set_name("sessions/a");
  request.set_max_tokens(kForever);
  SetGreedy(*request.mutable_sampling());
  grpc::ClientContext first_context;
  auto first = harness.sessions().Decode(&first_context, request);
  v1::DecodeResponse message;
  ASSERT_TRUE(first->Read(&message));
  grpc::ClientContext second_context;
  const StreamOutcome second = ReadAll(harness.sessions().Decode(&second_context, request));
  EXPECT_EQ(second.status.error_code(), StatusCode::ABORTED);
  EXPECT_TRUE(DetailOf<google::rpc::ErrorInfo>(second.status));
  EXPECT_TRUE(first->Read(&message));  // undisturbed
  first_context.TryCancel();
  first->Finish();
}

// Enough bytes a token that the connection's own buffers fill.
v1::GenerateRequest Wordy(uint32_t max_tokens) {
  v1::GenerateRequest request = Request("slowly", max_tokens);
  request.mutable_sampling()->set_logprobs(20);
  return request;
}

TEST(ServiceStream, ASlowReaderIsPausedAndLosesNothing) {
  constexpr uint32_t kTokens = 2000;
  ServiceHarness harness(LongContext());
  const StreamOutcome expected = Generate(harness, Wordy(kTokens));
  ASSERT_THAT(expected.tokens, SizeIs(kTokens));

  OpenStream slow(harness, Wordy(kTokens));
  ASSERT_TRUE(slow.Read());
  // It is read no further, so its sequence must come to rest long before its end.
  int64_t steps = -1;
  for (int i = 0; i < 100 && harness.Stats().steps() != steps; ++i) {
    steps = harness.Stats().steps();
    std::this_thread::sleep_for(milliseconds(200));
  }
  EXPECT_EQ(harness.Stats().steps(), steps) << "the engine went on for a reader that does not read";
  EXPECT_EQ(harness.Stats().running_count() + harness.Stats().waiting_count(), 1);
  // Others are not in its way.
  EXPECT_TRUE(Generate(harness, Request("quick", 50)).status.ok());

  std::vector<uint32_t> tokens;
  bool was_merged = false;
  do {
    was_merged |= slow.message.token_ids_size() > 1;
    EXPECT_EQ(slow.message.logprobs_size(), slow.message.token_ids_size());
    tokens.insert(tokens.end(), slow.message.token_ids().begin(), slow.message.token_ids().end());
  } while (slow.Read());
  EXPECT_TRUE(slow.reader->Finish().ok());
  EXPECT_EQ(tokens, expected.tokens);
  EXPECT_TRUE(was_merged);
}

TEST(ServiceStream, AReaderThatNeverReadsCanBeCancelled) {
  ServiceHarness harness(LongContext());
  OpenStream slow(harness, Wordy(kForever));
  std::this_thread::sleep_for(milliseconds(500));
  slow.context.TryCancel();
  slow.reader->Finish();
  EXPECT_TRUE(harness.Eventually(NothingIsHeld));
}

TEST(ServiceStream, SixtyFourStreamsGiveWhatLoneOnesGive) {
  constexpr size_t kStreams = 64;
  constexpr uint32_t kTokens = 256;
  ServiceHarness harness(LongContext());
  std::vector<v1::GenerateRequest> requests;
  for (size_t i = 0; i < kStreams; ++i) {
    requests.push_back(Request("story number " + std::to_string(i * i), kTokens));
    requests.back().mutable_sampling()->set_temperature(1);
    requests.back().mutable_sampling()->set_seed(i);
  }
  std::vector<std::future<StreamOutcome>> together;
  for (const v1::GenerateRequest& request : requests) {
    together.push_back(std::async(std::launch::async, [&] { return Generate(harness, request); }));
  }
  std::vector<StreamOutcome> outcomes;
  for (auto& outcome : together) outcomes.push_back(outcome.get());
  for (size_t i = 0; i < kStreams; ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(outcomes[i].status.ok()) << outcomes[i].status.error_message();
    EXPECT_THAT(outcomes[i].tokens, SizeIs(kTokens));
    const StreamOutcome lone = Generate(harness, requests[i]);
    EXPECT_EQ(outcomes[i].tokens, lone.tokens);
    EXPECT_EQ(outcomes[i].text, lone.text);
  }
  EXPECT_TRUE(harness.Eventually(NothingIsHeld));
}

TEST(ServiceStream, AFullQueueAnswersWhenToRetry) {
  ServiceOptions options = LongContext();
  options.concurrent_max = 1;
  options.waiting_max = 1;
  ServiceHarness harness(options);
  OpenStream running(harness, Request("a", kForever));
  ASSERT_TRUE(running.Read());
  OpenStream waiting(harness, Request("b", kForever));
  ASSERT_TRUE(harness.Eventually([](const v1::CacheStats& s) { return s.waiting_count() == 1; }));
  const StreamOutcome refused = Generate(harness, Request("c", 1));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const auto retry = DetailOf<google::rpc::RetryInfo>(refused.status);
  ASSERT_TRUE(retry);
  EXPECT_GT(retry->retry_delay().seconds() + retry->retry_delay().nanos(), 0);
  running.context.TryCancel();
  EXPECT_TRUE(waiting.Read());  // gets its place
  waiting.context.TryCancel();
  running.reader->Finish();
  waiting.reader->Finish();
}

}  // namespace
}  // namespace cairn
