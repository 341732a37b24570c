#include <utility>

#include "cairn/v1/cache_service.grpc.pb.h"
#include "engine/engine.h"
#include "service/rpc.h"
#include "service/services.h"
#include "service/wire.h"

namespace cairn {
namespace {

using RawCacheService = v1::CacheService::WithRawCallbackMethod_LookupPrefix<
    v1::CacheService::WithRawCallbackMethod_ExplainRestore<
        v1::CacheService::WithRawCallbackMethod_GetCacheStats<
            v1::CacheService::WithRawCallbackMethod_ClearCache<v1::CacheService::Service>>>>;

class CacheServiceImpl final : public RawCacheService {
 public:
  explicit CacheServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* LookupPrefix(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    return ServeUnary<v1::LookupPrefixRequest>(parts_.intake, context, request, response,
                                               [this](LookupRequest lookup, const UnaryCall& call) {
                                                 parts_.engine.LookupPrefix(
                                                     lookup.content, std::move(lookup.cache_salt),
                                                     [call](Result<Residency> residency) {
                                                       if (!residency.ok())
                                                         return call.Fail(residency.status());
                                                       call.Succeed(PrefixToProto(*residency));
                                                     });
                                               });
  }

  grpc::ServerUnaryReactor* ExplainRestore(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override {
    return ServeUnary<v1::ExplainRestoreRequest>(
        parts_.intake, context, request, response,
        [this](ExplainRequest explain, const UnaryCall& call) {
          parts_.engine.ExplainRestore(std::move(explain), call.ToReply<RestoreReport>());
        });
  }

  grpc::ServerUnaryReactor* GetCacheStats(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return ServeUnary<v1::GetCacheStatsRequest>(
        parts_.intake, context, request, response, [this](Done, const UnaryCall& call) {
          parts_.engine.GetStats(call.ToReply<EngineStats>());
        });
  }

  grpc::ServerUnaryReactor* ClearCache(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return ServeUnary<v1::ClearCacheRequest>(
        parts_.intake, context, request, response,
        [this](std::optional<Tier> tier, const UnaryCall& call) {
          parts_.engine.ClearCache(tier, call.ToReply<Done>());
        });
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCacheService(const ServiceParts& parts) {
  return std::make_unique<CacheServiceImpl>(parts);
}

}  // namespace cairn
