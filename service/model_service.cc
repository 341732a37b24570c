#include "cairn/v1/model_service.grpc.pb.h"
#include "engine/engine.h"
#include "service/rpc.h"
#include "service/services.h"
#include "service/wire.h"

namespace cairn {
namespace {

using RawModelService = v1::ModelService::WithRawCallbackMethod_GetModel<v1::ModelService::Service>;

class ModelServiceImpl final : public RawModelService {
 public:
  explicit ModelServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return ServeUnary<v1::GetModelRequest>(
        parts_.intake, context, request, response,
        [this](Done, const UnaryCall& call) { call.Succeed(ToProto(parts_.engine.model_info())); });
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelService(const ServiceParts& parts) {
  return std::make_unique<ModelServiceImpl>(parts);
}

}  // namespace cairn
