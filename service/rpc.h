// How every RPC of Cairn is served: gRPC hands over the bytes of the request and takes the bytes
// of the response, so that malformed bytes get our own answer (service/request_bytes.h) and one
// kind of reactor serves every stream.
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
#include "service/wire.h"

namespace cairn {

grpc::Status ToGrpcStatus(const Status& status, const ErrorSubject& subject);
grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message);
Status ParseBytes(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

// The request that `bytes` hold, a `Message`, as the engine's type for it.
template <class Message>
auto ParseRequest(const grpc::ByteBuffer& bytes) -> decltype(FromProto(std::declval<Message>())) {
  Message message;
  RETURN_IF_ERROR(ParseBytes(bytes, message));
  return FromProto(message);
}

inline google::protobuf::Empty ToProto(Done) { return {}; }

// One unary call: a handle that is copied into the engine's reply. Exactly one of Succeed and Fail
// is called, once, on any thread; the call is then over.
class UnaryCall {
 public:
  UnaryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : reactor_(context->DefaultReactor()), response_(response) {}

  // The sessions that errors are about, by id; "" for none.
  void Concerns(const std::string& used_id, const std::string& made_id = "");

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

// Parses the request and lets `act(request, call)` see to the answer; refuses it when it is bad.
template <class Message, class Act>
grpc::ServerUnaryReactor* ServeUnary(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                     Act act) {
  UnaryCall call(context, response);
  auto parsed = ParseRequest<Message>(*request);
  if (parsed.ok()) {
    act(*std::move(parsed), call);
  } else {
    call.Fail(parsed.status());
  }
  return call.reactor();
}

}  // namespace cairn
