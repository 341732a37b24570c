#include "service/rpc.h"

#include <vector>

#include "service/request_bytes.h"

namespace cairn {

grpc::Status ToGrpcStatus(const Status& status, const ErrorSubject& subject) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status details = ErrorDetails(status, subject);
  return grpc::Status(static_cast<grpc::StatusCode>(details.code()), details.message(),
                      details.SerializeAsString());
}

grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

Status TakeMessage(const grpc::ByteBuffer* request, size_t fields_max,
                   google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bytes.Swap(const_cast<grpc::ByteBuffer*>(request));  // it is the call's own, and nobody else's
  grpc::Slice slice;
  const grpc::Status read =
      bytes.TrySingleSlice(&slice).ok() ? grpc::Status::OK : bytes.DumpToSingleSlice(&slice);
  if (!read.ok()) return InvalidArgument("the request cannot be read: " + read.error_message());
  return ParseMessage({reinterpret_cast<const char*>(slice.begin()), slice.size()}, fields_max,
                      message);
}

void UnaryCall::Succeed(const google::protobuf::MessageLite& message) const {
  *response_ = ToBytes(message);
  reactor_->Finish(grpc::Status::OK);
}

void UnaryCall::Fail(const Status& status) const {
  reactor_->Finish(ToGrpcStatus(status, subject_));
}

}  // namespace cairn
