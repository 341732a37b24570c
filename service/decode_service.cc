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
  explicit DecodeServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  ByteStream* Generate(grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request) override {
    auto generate = TakeRequest<v1::GenerateRequest>(parts_.intake, request);
    if (!generate.ok()) return RefuseStream(generate.status());
    const TokenStreamOptions options = {.format = GenerateBytes, .subject = {}};
    return StartTokenStream(parts_, *context, options, [&](std::shared_ptr<TokenSink> sink) {
      return parts_.engine.Generate(std::move(generate->value), std::move(sink));
    });
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return ServeUnary<v1::TokenizeRequest>(parts_.intake, context, request, response,
                                           [this](const Content& content, const UnaryCall& call) {
                                             const auto ids = parts_.engine.Tokenize(content);
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
        parts_.intake, context, request, response,
        [this](const std::vector<uint32_t>& ids, const UnaryCall& call) {
          Result<std::string> text = parts_.engine.Detokenize(ids);
          if (!text.ok()) return call.Fail(text.status());
          v1::DetokenizeResponse message;
          message.set_text(*std::move(text));
          call.Succeed(message);
        });
  }

 private:
  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDecodeService(const ServiceParts& parts) {
  return std::make_unique<DecodeServiceImpl>(parts);
}

}  // namespace cairn
