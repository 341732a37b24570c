// From the bytes of a request to its message. gRPC's own parsing answers INTERNAL to bytes that it
// cannot read; here they are the client's fault, and a string that is not UTF-8 is named.
#pragma once

#include <google/protobuf/message.h>

#include <string_view>

#include "base/status.h"

namespace cairn {

// kInvalidArgument when `bytes` are not a message of `message`'s type, naming the field when it is
// a string that is not UTF-8. Any thread.
Status ParseMessage(std::string_view bytes, google::protobuf::Message& message);

}  // namespace cairn
