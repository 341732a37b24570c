#include "service/request_bytes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/utf8.h"

namespace cairn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kDepthMax = 100;  // as Protobuf's own parser
// What a request has beside the content of a context, with every field at its own limit: logit_bias
// is the most, with 1,024 entries of three fields.
constexpr size_t kOtherFieldsMax = 4096;

// Reads the fields of a message one after the other, and makes nothing of them.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes)
      : bytes_(bytes),
        input_(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size())) {}

  // Goes to the next field. False at the end, and where the bytes make no sense.
  bool Next() {
    const uint32_t tag = input_.ReadTag();
    number_ = WireFormatLite::GetTagFieldNumber(tag);
    value_.reset();
    if (tag == 0) {
      is_broken_ = !input_.ConsumedEntireMessage();
      return false;
    }
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        is_broken_ = !ReadValue();
        break;
      case WireFormatLite::WIRETYPE_START_GROUP:  // not in proto3
      case WireFormatLite::WIRETYPE_END_GROUP:
        is_broken_ = true;
        break;
      default:
        is_broken_ = !WireFormatLite::SkipField(&input_, tag);
    }
    return !is_broken_;
  }

  int number() const { return number_; }
  // Of a string, a message or a packed field; nothing for a lone number.
  const std::optional<std::string_view>& value() const { return value_; }
  bool is_broken() const { return is_broken_; }

 private:
  bool ReadValue() {
    uint32_t size = 0;
    if (!input_.ReadVarint32(&size)) return false;
    const size_t begin = static_cast<size_t>(input_.CurrentPosition());
    if (size > bytes_.size() - begin || !input_.Skip(static_cast<int>(size))) return false;
    value_ = bytes_.substr(begin, size);
    return true;
  }

  const std::string_view bytes_;
  CodedInputStream input_;
  int number_ = 0;
  std::optional<std::string_view> value_;
  bool is_broken_ = false;
};

// How many numbers a packed field has.
size_t PackedCount(std::string_view value, const FieldDescriptor& field) {
  switch (
      WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()))) {
    case WireFormatLite::WIRETYPE_FIXED32:
      return value.size() / 4;
    case WireFormatLite::WIRETYPE_FIXED64:
      return value.size() / 8;
    default:  // varints: the last byte of each is below 128
      return static_cast<size_t>(std::count_if(value.begin(), value.end(), [](char byte) {
        return static_cast<unsigned char>(byte) < 128;
      }));
  }
}

// Counts fields, at every depth, and the elements of packed ones, up to a bound.
class FieldCounter {
 public:
  explicit FieldCounter(size_t count_max) : left_(count_max) {}

  // False when there are too many, which path() then names, or when the bytes make no sense.
  bool Count(std::string_view bytes, const Descriptor& type, int depth = 0) {
    FieldReader reader(bytes);
    while (reader.Next()) {
      const FieldDescriptor* field = type.FindFieldByNumber(reader.number());
      path_.push_back(field ? field->name() : std::to_string(reader.number()));
      if (!Take(1)) return false;
      if (field != nullptr && reader.value()) {
        if (field->is_packable() && !Take(PackedCount(*reader.value(), *field))) return false;
        if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kDepthMax &&
            !Count(*reader.value(), *field->message_type(), depth + 1)) {
          return false;
        }
      }
      path_.pop_back();
    }
    return !reader.is_broken();
  }

  bool is_over() const { return is_over_; }
  std::string path() const {
    std::string path;
    for (const std::string& name : path_) path += (path.empty() ? "" : ".") + name;
    return path;
  }

 private:
  bool Take(size_t count) {
    is_over_ = count > left_;
    if (!is_over_) left_ -= count;
    return !is_over_;
  }

  size_t left_;
  bool is_over_ = false;
  std::vector<std::string> path_;  // to the field that is being looked at
};

// The path of the first string in `bytes`, a message of type `type`, that is not UTF-8, with
// `prefix` in front; nothing when there is none before the bytes stop making sense.
std::optional<std::string> FindBadString(std::string_view bytes, const Descriptor& type,
                                         const std::string& prefix = "", int depth = 0) {
  FieldReader reader(bytes);
  std::map<int, int> seen;  // elements of each repeated field so far
  while (reader.Next()) {
    const FieldDescriptor* field = type.FindFieldByNumber(reader.number());
    if (field == nullptr || !reader.value()) continue;
    std::string path = (prefix.empty() ? "" : prefix + ".") + field->name();
    if (field->is_repeated()) path += "[" + std::to_string(seen[reader.number()]++) + "]";
    if (field->type() == FieldDescriptor::TYPE_STRING && FindInvalidUtf8(*reader.value())) {
      return path;
    }
    if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kDepthMax) {
      auto found = FindBadString(*reader.value(), *field->message_type(), path, depth + 1);
      if (found) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

size_t RequestFieldsMax(uint32_t context_length) {
  return 3 * size_t{context_length} + kOtherFieldsMax;
}

Status ParseMessage(std::string_view bytes, size_t fields_max, google::protobuf::Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  Status malformed = InvalidArgument("the request is not a well-formed " + type.full_name());
  if (bytes.size() > INT32_MAX) return malformed;
  FieldCounter counter(fields_max);
  if (!counter.Count(bytes, type)) {
    if (!counter.is_over()) return malformed;
    return InvalidField(counter.path(), "one too many: a request has at most " +
                                            std::to_string(fields_max) +
                                            " fields and elements of fields");
  }
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return Status();
  if (auto field = FindBadString(bytes, type)) {
    return InvalidField(std::move(*field), "is not valid UTF-8");
  }
  return malformed;
}

}  // namespace cairn
