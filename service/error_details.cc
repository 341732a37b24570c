#include "service/error_details.h"

#include <string_view>

#include "engine/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "service/wire_times.h"

namespace cairn {
namespace {

constexpr size_t kMessageBytesMax = 1024;
constexpr size_t kFieldBytesMax = 256;

// At most `bytes_max` of `text`, and valid UTF-8 whatever it was made of: strings of Protobuf must
// be.
std::string Presentable(std::string_view text, size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    const std::string_view piece =
        unit.kind == Utf8Kind::kCharacter ? text.substr(0, unit.length) : kReplacementCharacter;
    if (out.size() + piece.size() > bytes_max) return out + "...";
    out += piece;
    text.remove_prefix(unit.length);
  }
  return out;
}

const char* AbortedReason(const std::string& field) {
  if (field == "expected_token_count") return "STALE_TOKEN_COUNT";
  if (field == "session.etag") return "STALE_ETAG";
  return "SESSION_CONFLICT";
}

// Why, in one word for programs. The domain "cairn" makes it unique.
const char* Reason(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
      return status.field().empty() ? "INVALID_REQUEST" : "INVALID_FIELD";
    case Code::kNotFound:
      return "SESSION_NOT_FOUND";
    case Code::kAlreadyExists:
      return "SESSION_EXISTS";
    case Code::kAborted:
      return AbortedReason(status.field());
    case Code::kResourceExhausted:
      return "LIMIT_REACHED";
    case Code::kUnavailable:
      return "SERVER_DRAINING";
    default:
      return CodeName(status.code());
  }
}

void AddSession(const std::string& name, const std::string& description,
                google::rpc::Status& error) {
  if (name.empty()) return;
  google::rpc::ResourceInfo resource;
  resource.set_resource_type("cairn.v1.Session");
  resource.set_resource_name(Presentable(name, kFieldBytesMax));
  resource.set_description(description);
  error.add_details()->PackFrom(resource);
}

// The message without "field: " in front, which the violation says in a place of its own.
std::string Description(const Status& status) {
  const std::string prefix = status.field() + ": ";
  const std::string& message = status.message();
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

}  // namespace

google::rpc::Status ErrorDetails(const Status& status, const ErrorSubject& subject) {
  CHECK(!status.ok());
  google::rpc::Status error;
  error.set_code(static_cast<int>(status.code()));
  error.set_message(Presentable(status.message(), kMessageBytesMax));

  google::rpc::ErrorInfo info;
  info.set_reason(Reason(status));
  info.set_domain("cairn");
  if (!status.field().empty()) {
    (*info.mutable_metadata())["field"] = Presentable(status.field(), kFieldBytesMax);
  }
  error.add_details()->PackFrom(info);

  if (status.code() == Code::kInvalidArgument && !status.field().empty()) {
    google::rpc::BadRequest bad_request;
    auto& violation = *bad_request.add_field_violations();
    violation.set_field(Presentable(status.field(), kFieldBytesMax));
    violation.set_description(Presentable(Description(status), kMessageBytesMax));
    error.add_details()->PackFrom(bad_request);
  }
  if (status.retry_after()) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() = DurationToProto(*status.retry_after());
    error.add_details()->PackFrom(retry);
  }
  if (status.code() == Code::kNotFound) AddSession(subject.used, "does not exist", error);
  if (status.code() == Code::kAlreadyExists) AddSession(subject.made, "exists", error);
  return error;
}

}  // namespace cairn
