// The gRPC server: the services of cairn.v1, health (grpc.health.v1) and reflection on one port,
// and if so configured health on a second port too.
//
// Health knows "", every service by its full name and "readiness" (all NOT_SERVING while draining
// or while the engine makes no progress), and "liveness" (NOT_SERVING only for the latter).
//
// Threads: gRPC's own for calls; one that watches the engine's health. Start, Drain and the
// destructor belong to the owner's thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "service/health_port.h"
#include "service/listen_address.h"
#include "service/request_intake.h"
#include "service/stream_writer.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace cairn {

class Engine;

struct ServerOptions {
  ListenAddress listen;
  std::optional<ListenAddress> health_listen;  // a second port, for health alone
  uint32_t message_bytes_max = 32u << 20;      // of one request; a larger one: RESOURCE_EXHAUSTED
  uint64_t request_memory_max = 128u << 20;    // of all large requests that are being read at once
  uint32_t pending_tokens_max = 1024;  // that wait for a slow reader before its stream pauses
  std::chrono::milliseconds stream_interval{
      10};  // between messages of a stream, when they can wait
};

class Server {
 public:
  // Listens when it returns. kUnavailable naming the flag and the address when that is not
  // possible. `engine` outlives the server.
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options, Engine& engine);
  ~Server();  // cancels every call that is left, and waits for its end
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return address_.port; }
  std::string address() const { return address_.ToString(); }
  std::string health_address() const { return health_port_ ? health_port_->address() : ""; }

  // Health says NOT_SERVING, the engine refuses new work (UNAVAILABLE), and running streams go on
  // for up to `grace`; what is left then ends with UNAVAILABLE. The server is down when it returns;
  // the health port answers until the destructor.
  void Drain(std::chrono::milliseconds grace);

 private:
  Server(Engine& engine, const ServerOptions& options);
  Status Listen(const ServerOptions& options);
  void PublishHealth();
  void WatchHealth();

  Engine& engine_;
  ListenAddress address_;
  RequestIntake intake_;  // outlives services_, as does the next
  StreamWriter writer_;
  std::vector<std::unique_ptr<grpc::Service>> services_;  // outlive server_
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HealthPort> health_port_;  // null: none was asked for

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool draining_ = false;
  bool stopping_ = false;
  std::thread health_watcher_;
};

}  // namespace cairn
