// The four gRPC services of package cairn.v1 (proto/cairn/v1), each over one engine that outlives
// it. Errors carry google.rpc details (service/error_details.h).
#pragma once

#include <cstddef>
#include <memory>

namespace grpc {
class Service;
}

namespace cairn {

class Engine;

// `pending_tokens_max`: tokens that wait for a slow reader before its stream is paused.
std::unique_ptr<grpc::Service> MakeSessionService(Engine& engine, size_t pending_tokens_max);
std::unique_ptr<grpc::Service> MakeDecodeService(Engine& engine, size_t pending_tokens_max);
std::unique_ptr<grpc::Service> MakeCacheService(Engine& engine);
std::unique_ptr<grpc::Service> MakeModelService(Engine& engine);

}  // namespace cairn
