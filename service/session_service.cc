#include <utility>

#include "cairn/v1/session_service.grpc.pb.h"
#include "engine/engine.h"
#include "service/rpc.h"
#include "service/services.h"
#include "service/token_stream.h"
#include "service/wire.h"

namespace cairn {
namespace {

using Context = grpc::CallbackServerContext;
using Bytes = grpc::ByteBuffer;
using Unary = grpc::ServerUnaryReactor;

// Every method takes and gives bytes (service/rpc.h).
template <class Base>
using RawReads = v1::SessionService::WithRawCallbackMethod_GetSession<
    v1::SessionService::WithRawCallbackMethod_ListSessions<
        v1::SessionService::WithRawCallbackMethod_ReadTokens<Base>>>;
template <class Base>
using RawLifetimes = v1::SessionService::WithRawCallbackMethod_CreateSession<
    v1::SessionService::WithRawCallbackMethod_UpdateSession<
        v1::SessionService::WithRawCallbackMethod_DeleteSession<
            v1::SessionService::WithRawCallbackMethod_ForkSession<Base>>>>;
template <class Base>
using RawChanges = v1::SessionService::WithRawCallbackMethod_TruncateSession<
    v1::SessionService::WithRawCallbackMethod_AppendContent<
        v1::SessionService::WithRawCallbackMethod_Decode<
            v1::SessionService::WithRawCallbackMethod_SuspendSession<
                v1::SessionService::WithRawCallbackMethod_PrefetchSession<Base>>>>>;
using RawSessionService = RawReads<RawLifetimes<RawChanges<v1::SessionService::Service>>>;

Bytes DecodeBytes(StreamUpdate update, const StreamEnd* end) {
  return ToBytes(DecodeToProto(std::move(update), end));
}

class SessionServiceImpl final : public RawSessionService {
 public:
  SessionServiceImpl(Engine& engine, size_t pending_tokens_max)
      : engine_(engine), pending_tokens_max_(pending_tokens_max) {}

  Unary* CreateSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::CreateSessionRequest>(
        context, request, response, [this](CreateSessionRequest create, UnaryCall call) {
          call.Concerns("", create.id);
          engine_.CreateSession(std::move(create), call.ToReply<SessionInfo>());
        });
  }

  Unary* GetSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::GetSessionRequest>(
        context, request, response, [this](const SessionRef& session, UnaryCall call) {
          call.Concerns(session.id);
          engine_.GetSession(session.id, call.ToReply<SessionInfo>());
        });
  }

  Unary* ListSessions(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::ListSessionsRequest>(
        context, request, response, [this](ListSessionsRequest list, const UnaryCall& call) {
          engine_.ListSessions(std::move(list), call.ToReply<SessionPage>());
        });
  }

  Unary* UpdateSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::UpdateSessionRequest>(
        context, request, response, [this](UpdateSessionRequest update, UnaryCall call) {
          call.Concerns(update.id);
          engine_.UpdateSession(std::move(update), call.ToReply<SessionInfo>());
        });
  }

  Unary* DeleteSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::DeleteSessionRequest>(
        context, request, response, [this](const SessionRef& session, UnaryCall call) {
          call.Concerns(session.id);
          engine_.DeleteSession(session.id, call.ToReply<Done>());
        });
  }

  Unary* ForkSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::ForkSessionRequest>(
        context, request, response, [this](ForkSessionRequest fork, UnaryCall call) {
          call.Concerns(fork.id, fork.new_id);
          engine_.ForkSession(std::move(fork), call.ToReply<SessionInfo>());
        });
  }

  Unary* TruncateSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::TruncateSessionRequest>(
        context, request, response, [this](const TruncateRequest& truncate, UnaryCall call) {
          call.Concerns(truncate.id);
          engine_.TruncateSession(truncate.id, truncate.token_count, call.ToReply<SessionInfo>());
        });
  }

  Unary* AppendContent(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::AppendContentRequest>(
        context, request, response, [this](AppendRequest append, UnaryCall call) {
          call.Concerns(append.id);
          engine_.AppendContent(std::move(append), call.ToReply<AppendResult>());
        });
  }

  Unary* SuspendSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::SuspendSessionRequest>(
        context, request, response, [this](const SuspendRequest& suspend, UnaryCall call) {
          call.Concerns(suspend.id);
          engine_.SuspendSession(suspend.id, suspend.tier, call.ToReply<SessionInfo>());
        });
  }

  Unary* PrefetchSession(Context* context, const Bytes* request, Bytes* response) override {
    return ServeUnary<v1::PrefetchSessionRequest>(
        context, request, response, [this](const SessionRef& session, UnaryCall call) {
          call.Concerns(session.id);
          engine_.PrefetchSession(session.id, call.ToReply<SessionInfo>());
        });
  }

  ByteStream* Decode(Context* context, const Bytes* request) override {
    Result<DecodeRequest> decode = ParseRequest<v1::DecodeRequest>(*request);
    if (!decode.ok()) return RefuseStream(decode.status());
    const TokenStreamOptions options = {.pending_tokens_max = pending_tokens_max_,
                                        .format = DecodeBytes,
                                        .subject = {.used = SessionName(decode->id), .made = ""}};
    return StartTokenStream(engine_, *context, options, [&](std::shared_ptr<TokenSink> sink) {
      return engine_.Decode(*std::move(decode), std::move(sink));
    });
  }

  ByteStream* ReadTokens(Context*, const Bytes* request) override {
    Result<ReadTokensRequest> read = ParseRequest<v1::ReadTokensRequest>(*request);
    if (!read.ok()) return RefuseStream(read.status());
    return StartTokenReader(engine_, *std::move(read));
  }

 private:
  Engine& engine_;
  const size_t pending_tokens_max_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(Engine& engine, size_t pending_tokens_max) {
  return std::make_unique<SessionServiceImpl>(engine, pending_tokens_max);
}

}  // namespace cairn
