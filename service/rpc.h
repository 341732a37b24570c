// How every RPC of Cairn is served: gRPC hands over the bytes of the request and takes the bytes
// of the response, so that malformed bytes get our own answer (service/request_bytes.h), what
// requests cost has a bound (service/request_intake.h) and one kind of reactor serves every stream.
//
// Heavy to compile: only for the sources of the services.
#pragma once

#include <google/protobuf/empty.pb.h>
#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "engine/api.h"
#include "service/error_details.h"
#include "service/request_intake.h"
#include "service/wire.h"

namespace cairn {

grpc::Status ToGrpcStatus(const Status& status, const ErrorSubject& subject);
grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message);

// Reads `request` into `message` and lets its bytes go: gRPC itself would keep them until the call
// is over, which for a stream may be hours.
Status TakeMessage(const grpc::ByteBuffer* request, size_t fields_max,
                   google::protobuf::Message& message);

// A request as the engine's type for it. While it lives, its bytes count as being read.
template <class T>
struct TakenRequest {
  RequestIntake::Ticket ticket;
  T value;
};

// The request that the bytes hold, a `Message`.
template <class Message>
auto TakeRequest(RequestIntake& intake, const grpc::ByteBuffer* request)
    -> Result<TakenRequest<std::decay_t<decltype(*FromProto(std::declval<Message>()))>>> {
  ASSIGN_OR_RETURN(RequestIntake::Ticket ticket, intake.Admit(request->Length()));
  Message message;
  RETURN_IF_ERROR(TakeMessage(request, intake.fields_max(), message));
  ASSIGN_OR_RETURN(auto value, FromProto(message));
  return {{std::move(ticket), std::move(value)}};
}

inline google::protobuf::Empty ToProto(Done) { return {}; }

// One unary call: a handle that is copied into the engine's reply. Exactly one of Succeed and Fail
// is called, once, on any thread; the call is then over.
class UnaryCall {
 public:
  UnaryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : reactor_(context->DefaultReactor()), response_(response) {}

  // The sessions that errors are about.
  void Concerns(ErrorSubject subject) { subject_ = std::move(subject); }

  void Succeed(const google::protobuf::MessageLite& message) const;
  void Fail(const Status& status) const;

  // Answers with what the engine replies.
  template <class T>
  Reply<T> ToReply() const {
    return [call = *this](Result<T> result) {
      if (!result.ok()) return call.Fail(result.status());
      call.Succeed(ToProto(*std::move(result)));
    };
  }

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

 private:
  grpc::ServerUnaryReactor* reactor_;  // gRPC's; lives until the call is over, as does the response
  grpc::ByteBuffer* response_;
  ErrorSubject subject_;
};

// Reads the request and lets `act(request, call)` see to the answer; refuses it when it is bad.
template <class Message, class Act>
grpc::ServerUnaryReactor* ServeUnary(RequestIntake& intake, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                     Act act) {
  UnaryCall call(context, response);
  auto taken = TakeRequest<Message>(intake, request);
  if (taken.ok()) {
    act(std::move(taken->value), call);
  } else {
    call.Fail(taken.status());
  }
  return call.reactor();
}

}  // namespace cairn
