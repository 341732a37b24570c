// Decoding as a client of a running server sees it: over gRPC, one message a token. The counterpart
// of engine_bench's case decode:CONTEXT:STREAMS:DECODED; prints one JSON object.
//
//   serving_bench ADDRESS CONTEXT STREAMS DECODED
//
// STREAMS new sessions read CONTEXT random tokens each, then all of them decode DECODED + 1 tokens
// at once. What counts is what arrives after every stream has its first token.
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cairn/v1/session_service.grpc.pb.h"

namespace cairn {
namespace {

using Time = std::chrono::steady_clock::time_point;

struct Arrival {
  Time time;
  int token_count;
};

void Check(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "serving_bench: %s\n", status.error_message().c_str());
  std::exit(1);
}

// A stream that is read by callbacks: the cheapest client that gRPC has, for client and server
// share the processors here.
class Stream final : public grpc::ClientReadReactor<v1::DecodeResponse> {
 public:
  Stream(v1::SessionService::Stub& stub, const v1::DecodeRequest& request) : request_(request) {
    stub.async()->Decode(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.token_ids_size() > 0) {
      arrivals_.push_back({std::chrono::steady_clock::now(), response_.token_ids_size()});
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }

  // What has arrived, when the stream is over.
  std::vector<Arrival> Wait() {
    Check(done_.get_future().get());
    return std::move(arrivals_);
  }

 private:
  const v1::DecodeRequest request_;
  grpc::ClientContext context_;
  v1::DecodeResponse response_;
  std::vector<Arrival> arrivals_;
  std::promise<grpc::Status> done_;
};

class Client {
 public:
  Client(v1::SessionService::Stub& stub, std::string id) : stub_(stub), id_(std::move(id)) {}

  void Create() {
    v1::CreateSessionRequest request;
    request.set_session_id(id_);
    v1::Session session;
    grpc::ClientContext context;
    Check(stub_.CreateSession(&context, request, &session));
  }

  // Starts a stream; `content` may be empty.
  std::unique_ptr<Stream> Decode(const std::vector<uint32_t>& content, uint32_t max_tokens) {
    v1::DecodeRequest request;
    request.set_name("sessions/" + id_);
    request.set_max_tokens(max_tokens);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_ignore_eos(true);
    if (!content.empty()) {
      request.mutable_content()->mutable_tokens()->mutable_ids()->Assign(content.begin(),
                                                                         content.end());
    }
    return std::make_unique<Stream>(stub_, request);
  }

 private:
  v1::SessionService::Stub& stub_;
  const std::string id_;
};

double TokensPerSecond(const std::vector<std::vector<Arrival>>& streams) {
  Time begin = Time::min(), end = Time::min();
  for (const std::vector<Arrival>& arrivals : streams) {
    begin = std::max(begin, arrivals.front().time);
    end = std::max(end, arrivals.back().time);
  }
  double token_count = 0;
  for (const std::vector<Arrival>& arrivals : streams) {
    for (const Arrival& arrival : arrivals) {
      if (arrival.time > begin) token_count += arrival.token_count;
    }
  }
  return token_count / std::chrono::duration<double>(end - begin).count();
}

int Main(const std::string& address, uint32_t context, uint32_t stream_count, uint32_t decoded) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto stub = v1::SessionService::NewStub(channel);
  // Names and prompts differ from run to run: nothing is cached.
  const uint64_t run = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch() /
                                             std::chrono::microseconds(1));
  Rng rng(run);
  std::vector<Client> clients;
  for (uint32_t i = 0; i < stream_count; ++i) {
    clients.emplace_back(*stub, "bench-" + std::to_string(run) + "-" + std::to_string(i));
    clients.back().Create();
    std::vector<uint32_t> prompt;
    for (uint32_t j = 0; j + 1 < context; ++j) {
      prompt.push_back(static_cast<uint32_t>(1000 + rng.Below(40000)));
    }
    clients.back().Decode(prompt, 1)->Wait();
  }
  std::vector<std::unique_ptr<Stream>> streams;
  for (Client& client : clients) streams.push_back(client.Decode({}, decoded + 1));
  std::vector<std::vector<Arrival>> arrivals;
  for (const auto& stream : streams) arrivals.push_back(stream->Wait());
  std::printf("{\"case\":\"served\",\"context\":%u,\"streams\":%u,\"tokens_per_s\":%.2f}\n",
              context, stream_count, TokensPerSecond(arrivals));
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: serving_bench ADDRESS CONTEXT STREAMS DECODED\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<uint32_t>(std::atoi(argv[i])); };
  return cairn::Main(argv[1], number(2), number(3), number(4));
}
