// The four gRPC services of package cairn.v1 (proto/cairn/v1) over one engine. Errors carry
// google.rpc details (service/error_details.h).
#pragma once

#include <cstddef>
#include <memory>

namespace grpc {
class Service;
}

namespace cairn {

class Engine;
class RequestIntake;
class StreamWriter;

// What the services share; all of it outlives them.
struct ServiceParts {
  Engine& engine;
  RequestIntake& intake;
  StreamWriter& writer;
  size_t pending_tokens_max;  // that wait for a slow reader before its stream is paused
};

std::unique_ptr<grpc::Service> MakeSessionService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeDecodeService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeCacheService(const ServiceParts& parts);
std::unique_ptr<grpc::Service> MakeModelService(const ServiceParts& parts);

}  // namespace cairn
