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
  explicit ModelServiceImpl(Engine& engine) : engine_(engine) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return ServeUnary<v1::GetModelRequest>(
        context, request, response,
        [this](Done, const UnaryCall& call) { call.Succeed(ToProto(engine_.model_info())); });
  }

 private:
  Engine& engine_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelService(Engine& engine) {
  return std::make_unique<ModelServiceImpl>(engine);
}

}  // namespace cairn
