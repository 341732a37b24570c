// A second port with health alone: grpc.health.v1, in plaintext, without reflection and without any
// other service. Who watches the server from outside asks here (kubelet's probes speak neither TLS
// nor tokens), and a network policy can open it without opening the rest.
//
// Small whoever connects: a request has at most 1 KiB, a connection 16 calls at once, and one that
// asks nothing for a minute is closed. Threads: gRPC's own; Set may be called from any.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "service/listen_address.h"

namespace grpc {
class CallbackGenericService;
class Server;
}  // namespace grpc

namespace cairn {

class HealthPort {
 public:
  // Listens when it returns; nothing is serving yet. kUnavailable naming --health-listen when that
  // is not possible.
  static Result<std::unique_ptr<HealthPort>> Start(const ListenAddress& listen);
  ~HealthPort();  // cancels every Watch that is left
  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;

  std::string address() const { return address_.ToString(); }

  // What Check and Watch say of `service` from now on; they know no service that was never set.
  void Set(const std::string& service, bool is_serving);

 private:
  HealthPort();

  ListenAddress address_;
  const std::unique_ptr<grpc::CallbackGenericService> others_;  // outlives server_
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cairn
