#include "service/request_bytes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <map>
#include <optional>
#include <string>

#include "engine/utf8.h"

namespace cairn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kDepthMax = 100;  // as Protobuf's own parser

// "a" + "b" -> "a.b".
std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// The path of the first string in `bytes`, a message of type `type`, that is not UTF-8, with
// `prefix` in front; nothing when there is none before the bytes stop making sense.
std::optional<std::string> FindBadString(std::string_view bytes, const Descriptor& type,
                                         const std::string& prefix, int depth) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  std::map<int, int> seen;  // elements of each repeated field so far
  while (const uint32_t tag = input.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return std::nullopt;
      continue;
    }
    uint32_t size = 0;
    if (!input.ReadVarint32(&size)) return std::nullopt;
    const size_t begin = static_cast<size_t>(input.CurrentPosition());
    if (size > bytes.size() - begin || !input.Skip(static_cast<int>(size))) return std::nullopt;
    const std::string_view value = bytes.substr(begin, size);

    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const FieldDescriptor* field = type.FindFieldByNumber(number);
    if (field == nullptr) continue;
    std::string path = Join(prefix, field->name());
    if (field->is_repeated()) path += "[" + std::to_string(seen[number]++) + "]";
    if (field->type() == FieldDescriptor::TYPE_STRING && FindInvalidUtf8(value)) return path;
    if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kDepthMax) {
      auto found = FindBadString(value, *field->message_type(), path, depth + 1);
      if (found) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

Status ParseMessage(std::string_view bytes, google::protobuf::Message& message) {
  if (bytes.size() <= INT32_MAX &&
      message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Status();
  }
  const Descriptor& type = *message.GetDescriptor();
  if (bytes.size() <= INT32_MAX) {
    if (auto field = FindBadString(bytes, type, "", 0)) {
      return InvalidField(std::move(*field), "is not valid UTF-8");
    }
  }
  return InvalidArgument("the request is not a well-formed " + type.full_name());
}

}  // namespace cairn
