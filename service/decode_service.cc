#include <utility>

#include "cairn/v1/decode_service.grpc.pb.h"
#include "engine/engine.h"
#include "service/rpc.h"
#include "service/services.h"
#include "service/token_stream.h"
#include "service/wire.h"

namespace cairn {
namespace {

using RawDecodeService = v1::DecodeService::WithRawCallbackMethod_Generate<
    v1::DecodeService::WithRawCallbackMethod_Tokenize<
        v1::DecodeService::WithRawCallbackMethod_Detokenize<v1::DecodeService::Service>>>;

grpc::ByteBuffer GenerateBytes(StreamUpdate update, const StreamEnd* end) {
  return ToBytes(GenerateToProto(std::move(update), end));
}

class DecodeServiceImpl final : public RawDecodeService {
 public:
  DecodeServiceImpl(Engine& engine, size_t pending_tokens_max)
      : engine_(engine), pending_tokens_max_(pending_tokens_max) {}

  ByteStream* Generate(grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request) override {
    Result<GenerateRequest> generate = ParseRequest<v1::GenerateRequest>(*request);
    if (!generate.ok()) return RefuseStream(generate.status());
    const TokenStreamOptions options = {
        .pending_tokens_max = pending_tokens_max_, .format = GenerateBytes, .subject = {}};
    return StartTokenStream(engine_, *context, options, [&](std::shared_ptr<TokenSink> sink) {
      return engine_.Generate(*std::move(generate), std::move(sink));
    });
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return ServeUnary<v1::TokenizeRequest>(context, request, response,
                                           [this](const Content& content, const UnaryCall& call) {
                                             const auto ids = engine_.Tokenize(content);
                                             if (!ids.ok()) return call.Fail(ids.status());
                                             v1::TokenizeResponse message;
                                             message.mutable_ids()->Add(ids->begin(), ids->end());
                                             call.Succeed(message);
                                           });
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override {
    return ServeUnary<v1::DetokenizeRequest>(
        context, request, response,
        [this](const std::vector<uint32_t>& ids, const UnaryCall& call) {
          Result<std::string> text = engine_.Detokenize(ids);
          if (!text.ok()) return call.Fail(text.status());
          v1::DetokenizeResponse message;
          message.set_text(*std::move(text));
          call.Succeed(message);
        });
  }

 private:
  Engine& engine_;
  const size_t pending_tokens_max_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDecodeService(Engine& engine, size_t pending_tokens_max) {
  return std::make_unique<DecodeServiceImpl>(engine, pending_tokens_max);
}

}  // namespace cairn
