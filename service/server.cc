#include "service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "engine/engine.h"
#include "service/request_bytes.h"
#include "service/services.h"

namespace cairn {
namespace {

constexpr auto kHealthPeriod = std::chrono::seconds(1);
constexpr auto kFlushGrace = std::chrono::seconds(5);  // for the last messages of streams

constexpr const char* kReadinessNames[] = {"",
                                           "readiness",
                                           "cairn.v1.SessionService",
                                           "cairn.v1.DecodeService",
                                           "cairn.v1.CacheService",
                                           "cairn.v1.ModelService"};

void SetChannelArguments(grpc::ServerBuilder& builder) {
  // A second server on the same port is an error, not a share of its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients may ping every 10 s, with calls or without; half of that still passes as jitter.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A peer that is gone without a word is noticed within 40 s, and its streams end.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4096);
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Engine& engine) {
  std::unique_ptr<Server> server(new Server(engine, options));
  RETURN_IF_ERROR(server->Listen(options));
  return server;
}

Server::Server(Engine& engine, const ServerOptions& options)
    : engine_(engine),
      address_(options.listen),
      intake_(RequestFieldsMax(static_cast<uint32_t>(engine.model_info().context_length)),
              options.request_memory_max),
      writer_(options.stream_interval) {}

Status Server::Listen(const ServerOptions& options) {
  RETURN_IF_ERROR(CheckCanListen("--listen", options.listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  const ServiceParts parts = {.engine = engine_,
                              .intake = intake_,
                              .writer = writer_,
                              .pending_tokens_max = options.pending_tokens_max};
  services_.push_back(MakeSessionService(parts));
  services_.push_back(MakeDecodeService(parts));
  services_.push_back(MakeCacheService(parts));
  services_.push_back(MakeModelService(parts));

  grpc::ServerBuilder builder;
  SetChannelArguments(builder);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
  builder.SetMaxSendMessageSize(-1);  // no limit: what is sent is bounded where it is made
  // Threads of the synchronous API, which reflection alone uses.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  for (const auto& service : services_) builder.RegisterService(service.get());
  int port = 0;
  builder.AddListeningPort(options.listen.ToString(), grpc::InsecureServerCredentials(), &port);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    return Unavailable("--listen: cannot listen on " + options.listen.ToString());
  }
  address_.port = static_cast<uint16_t>(port);
  if (options.health_listen) {
    ASSIGN_OR_RETURN(health_port_, HealthPort::Start(*options.health_listen));
  }
  PublishHealth();
  health_watcher_ = std::thread([this] { WatchHealth(); });
  return Status();
}

Server::~Server() {
  if (health_watcher_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    health_watcher_.join();
  }
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void Server::Drain(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::system_clock::now() + grace;
  {
    std::lock_guard lock(mutex_);
    draining_ = true;
  }
  PublishHealth();
  // Shared, because the engine may call back after the grace, when nobody waits any more.
  struct Drained {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto drained = std::make_shared<Drained>();
  engine_.Drain([drained] {
    std::lock_guard lock(drained->mutex);
    drained->done = true;
    drained->changed.notify_all();
  });
  const auto wait_until = [&](std::chrono::system_clock::time_point moment) {
    std::unique_lock lock(drained->mutex);
    return drained->changed.wait_until(lock, moment, [&] { return drained->done; });
  };
  if (!wait_until(deadline)) {
    // The engine ends what is left, so that each stream says why. gRPC would cut it without a word:
    // the client would see a lost connection, or a CANCELLED that nobody meant.
    engine_.EndStreams();
    wait_until(std::chrono::system_clock::now() + kFlushGrace);
  }
  // Streams that ended may still have their last message on the way.
  server_->Shutdown(std::chrono::system_clock::now() + kFlushGrace);
  server_->Wait();
}

void Server::PublishHealth() {
  const bool is_live = engine_.Healthy();
  bool is_ready = is_live;
  {
    std::lock_guard lock(mutex_);
    if (draining_) is_ready = false;
  }
  grpc::HealthCheckServiceInterface& health = *server_->GetHealthCheckService();
  const auto publish = [&](const char* name, bool is_serving) {
    health.SetServingStatus(name, is_serving);
    if (health_port_) health_port_->Set(name, is_serving);
  };
  for (const char* name : kReadinessNames) publish(name, is_ready);
  publish("liveness", is_live);
}

void Server::WatchHealth() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kHealthPeriod, [this] { return stopping_; })) {
    lock.unlock();
    PublishHealth();
    lock.lock();
  }
}

}  // namespace cairn
