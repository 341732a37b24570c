// From the bytes of a request to its message.
//
// gRPC's own parsing answers INTERNAL to bytes that it cannot read; here they are the client's
// fault, and a string that is not UTF-8 is named. And Protobuf makes an object of up to a hundred
// bytes of every two bytes that say "an empty element": fields are counted before it parses them.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace cairn {

// As many fields, at every depth, and elements of packed fields as a good request may have.
// Whatever fills a context takes a token of it at least: an id, or a chat message, which is three
// fields.
size_t RequestFieldsMax(uint32_t context_length);

// kInvalidArgument when `bytes` are not a message of `message`'s type, naming the field when it is
// a string that is not UTF-8 or when it goes beyond `fields_max`. Any thread.
Status ParseMessage(std::string_view bytes, size_t fields_max, google::protobuf::Message& message);

}  // namespace cairn
