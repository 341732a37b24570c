// A server in this process on a free port, over a tiny or the real model, and its clients.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cairn/v1/cache_service.grpc.pb.h"
#include "cairn/v1/decode_service.grpc.pb.h"
#include "cairn/v1/model_service.grpc.pb.h"
#include "cairn/v1/session_service.grpc.pb.h"
#include "engine/engine.h"
#include "engine/load.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "service/server.h"
#include "tests/fakes/gguf_writer.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {

struct ServiceOptions {
  std::string model_path;  // empty: a tiny model is written
  TinyModelOptions model;
  uint64_t device_memory_bytes = 16u << 20;
  uint32_t concurrent_max = 64;
  uint32_t waiting_max = 1024;
  uint32_t pending_tokens_max = 64;
  uint64_t request_memory_max = 128u << 20;
  std::chrono::milliseconds watchdog_max{30'000};
  std::optional<ListenAddress> health_listen;
};

class ServiceHarness {
 public:
  explicit ServiceHarness(const ServiceOptions& options = {}) {
    LoadOptions load;
    load.model_path = options.model_path;
    if (load.model_path.empty()) {
      load.model_path = scratch_.File("tiny.gguf");
      WriteTinyModel(load.model_path, options.model);
    }
    load.thread_count = 2;
    load.device_memory_bytes = options.device_memory_bytes;
    load.engine.concurrent_max = options.concurrent_max;
    load.engine.waiting_max = options.waiting_max;
    load.engine.paused_max = std::min(load.engine.paused_max, options.watchdog_max / 2);
    load.engine.watchdog_max = options.watchdog_max;
    Result<LoadedEngine> loaded = LoadEngine(load, clock_, nullptr);
    if (!loaded.ok()) Die(loaded.status());
    engine_ = std::make_unique<Engine>(std::move(loaded->parts), loaded->config, clock_);
    Result<std::unique_ptr<Server>> server =
        Server::Start({.listen = {.host = "127.0.0.1", .port = 0},
                       .health_listen = options.health_listen,
                       .request_memory_max = options.request_memory_max,
                       .pending_tokens_max = options.pending_tokens_max},
                      *engine_);
    if (!server.ok()) Die(server.status());
    server_ = *std::move(server);
    Connect();
  }

  Server& server() { return *server_; }
  Engine& engine() { return *engine_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  v1::SessionService::Stub& sessions() { return *sessions_; }
  v1::DecodeService::Stub& decoder() { return *decoder_; }
  v1::CacheService::Stub& cache() { return *cache_; }
  v1::ModelService::Stub& model() { return *model_; }

  v1::CacheStats Stats() {
    v1::CacheStats stats;
    grpc::ClientContext context;
    const grpc::Status status = cache_->GetCacheStats(&context, {}, &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }

  // Waits until `holds` of the statistics; false after ten seconds.
  bool Eventually(const std::function<bool(const v1::CacheStats&)>& holds) {
    for (int i = 0; i < 1000; ++i) {
      if (holds(Stats())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  v1::Session Create(const std::string& id, const std::string& text = "") {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    if (!text.empty()) request.mutable_content()->set_text(text);
    v1::Session session;
    grpc::ClientContext context;
    const grpc::Status status = sessions_->CreateSession(&context, request, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session;
  }

 private:
  [[noreturn]] static void Die(const Status& status) {
    ADD_FAILURE() << status.ToString();
    std::abort();
  }

  void Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    // Windows stay small, so that a reader that does not read is soon noticed.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65'535);
    channel_ = grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(),
                                         arguments);
    sessions_ = v1::SessionService::NewStub(channel_);
    decoder_ = v1::DecodeService::NewStub(channel_);
    cache_ = v1::CacheService::NewStub(channel_);
    model_ = v1::ModelService::NewStub(channel_);
  }

  ScratchFolder scratch_;
  SystemClock clock_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::DecodeService::Stub> decoder_;
  std::unique_ptr<v1::CacheService::Stub> cache_;
  std::unique_ptr<v1::ModelService::Stub> model_;
};

// One detail of an error, by its type.
template <class Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  google::rpc::Status error;
  if (!error.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& any : error.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

// The field that BadRequest names; "" if there is none.
inline std::string FieldOf(const grpc::Status& status) {
  const auto bad_request = DetailOf<google::rpc::BadRequest>(status);
  if (!bad_request || bad_request->field_violations().empty()) return "";
  return bad_request->field_violations(0).field();
}

// INVALID_ARGUMENT that names `field` in the message and in the details.
inline void ExpectBadField(const grpc::Status& status, const std::string& field) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_EQ(FieldOf(status), field) << status.error_message();
  EXPECT_THAT(status.error_message(), testing::HasSubstr(field));
  const auto info = DetailOf<google::rpc::ErrorInfo>(status);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->domain(), "cairn");
}

inline void SetGreedy(v1::SamplingParams& sampling) {
  sampling.set_temperature(0);
  sampling.set_ignore_eos(true);
}

// What a stream said in all, and how it ended.
struct StreamOutcome {
  grpc::Status status;
  std::vector<uint32_t> tokens;
  std::string text;
  std::optional<int64_t> first_position;
  size_t message_count = 0;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  v1::Usage usage;
};

inline void TakePosition(const v1::DecodeResponse& message, StreamOutcome& outcome) {
  if (!outcome.first_position) outcome.first_position = message.position();
  EXPECT_EQ(message.position(),
            *outcome.first_position + static_cast<int64_t>(outcome.tokens.size()));
}
inline void TakePosition(const v1::GenerateResponse&, StreamOutcome&) {}

// Reads `stream` to its end.
template <class Response>
StreamOutcome ReadAll(std::unique_ptr<grpc::ClientReader<Response>> stream) {
  StreamOutcome outcome;
  Response message;
  while (stream->Read(&message)) {
    EXPECT_FALSE(outcome.usage.prompt_tokens()) << "a message after the last";
    TakePosition(message, outcome);
    outcome.tokens.insert(outcome.tokens.end(), message.token_ids().begin(),
                          message.token_ids().end());
    outcome.text += message.text();
    outcome.finish_reason = message.finish_reason();
    if (message.has_usage()) outcome.usage = message.usage();
    ++outcome.message_count;
  }
  outcome.status = stream->Finish();
  return outcome;
}

inline constexpr uint32_t kForever = 150'000;  // tokens that take longer than any test waits

inline ServiceOptions LongContext() {
  ServiceOptions options;
  options.model.context_length = 200'000;
  options.device_memory_bytes = 128u << 20;
  return options;
}

inline v1::GenerateRequest Request(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.mutable_content()->set_text(text);
  request.set_max_tokens(max_tokens);
  SetGreedy(*request.mutable_sampling());
  return request;
}

}  // namespace cairn
