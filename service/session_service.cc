#include <functional>
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

// Which sessions an error of a request is about.
template <class Request>
ErrorSubject SubjectOf(const Request& request) {
  return {.used = SessionName(request.id), .made = ""};
}
ErrorSubject SubjectOf(const ListSessionsRequest&) { return {}; }
ErrorSubject SubjectOf(const CreateSessionRequest& create) {
  return {.used = "", .made = SessionName(create.id)};
}
ErrorSubject SubjectOf(const ForkSessionRequest& fork) {
  return {.used = SessionName(fork.id), .made = SessionName(fork.new_id)};
}

class SessionServiceImpl final : public RawSessionService {
 public:
  explicit SessionServiceImpl(const ServiceParts& parts) : parts_(parts) {}

  Unary* CreateSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::CreateSessionRequest>(context, request, response, &Engine::CreateSession);
  }
  Unary* GetSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::GetSessionRequest>(context, request, response, &Engine::GetSession);
  }
  Unary* ListSessions(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::ListSessionsRequest>(context, request, response, &Engine::ListSessions);
  }
  Unary* UpdateSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::UpdateSessionRequest>(context, request, response, &Engine::UpdateSession);
  }
  Unary* DeleteSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::DeleteSessionRequest>(context, request, response, &Engine::DeleteSession);
  }
  Unary* ForkSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::ForkSessionRequest>(context, request, response, &Engine::ForkSession);
  }
  Unary* TruncateSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::TruncateSessionRequest>(context, request, response, &Engine::TruncateSession);
  }
  Unary* AppendContent(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::AppendContentRequest>(context, request, response, &Engine::AppendContent);
  }
  Unary* SuspendSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::SuspendSessionRequest>(context, request, response, &Engine::SuspendSession);
  }
  Unary* PrefetchSession(Context* context, const Bytes* request, Bytes* response) override {
    return Ask<v1::PrefetchSessionRequest>(context, request, response, &Engine::PrefetchSession);
  }

  ByteStream* Decode(Context* context, const Bytes* request) override {
    auto decode = TakeRequest<v1::DecodeRequest>(parts_.intake, request);
    if (!decode.ok()) return RefuseStream(decode.status());
    const TokenStreamOptions options = {.format = DecodeBytes, .subject = SubjectOf(decode->value)};
    return StartTokenStream(parts_, *context, options, [&](std::shared_ptr<TokenSink> sink) {
      return parts_.engine.Decode(std::move(decode->value), std::move(sink));
    });
  }

  ByteStream* ReadTokens(Context*, const Bytes* request) override {
    auto read = TakeRequest<v1::ReadTokensRequest>(parts_.intake, request);
    if (!read.ok()) return RefuseStream(read.status());
    return StartTokenReader(parts_.engine, std::move(read->value));
  }

 private:
  // Hands the request, a `Message`, to `method` of the engine, whose answer is the call's.
  template <class Message, class Request, class T>
  Unary* Ask(Context* context, const Bytes* bytes, Bytes* response,
             void (Engine::*method)(Request, Reply<T>)) {
    return ServeUnary<Message>(parts_.intake, context, bytes, response,
                               [&engine = parts_.engine, method](Request request, UnaryCall call) {
                                 call.Concerns(SubjectOf(request));
                                 std::invoke(method, engine, std::move(request), call.ToReply<T>());
                               });
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(const ServiceParts& parts) {
  return std::make_unique<SessionServiceImpl>(parts);
}

}  // namespace cairn
