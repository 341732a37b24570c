#include "service/ctl/client.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace cairn {
namespace {

constexpr int kRefused = 1;
constexpr int kWrongUsage = 2;
constexpr int kNoAnswer = 3;
constexpr int kInterrupted = 130;

std::string CodeName(grpc::StatusCode code) {
  static const char* const kNames[] = {"OK",
                                       "CANCELLED",
                                       "UNKNOWN",
                                       "INVALID_ARGUMENT",
                                       "DEADLINE_EXCEEDED",
                                       "NOT_FOUND",
                                       "ALREADY_EXISTS",
                                       "PERMISSION_DENIED",
                                       "RESOURCE_EXHAUSTED",
                                       "FAILED_PRECONDITION",
                                       "ABORTED",
                                       "OUT_OF_RANGE",
                                       "UNIMPLEMENTED",
                                       "INTERNAL",
                                       "UNAVAILABLE",
                                       "DATA_LOSS",
                                       "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "CODE_" + std::to_string(index);
}

// The google.rpc details that the server attaches to an error.
struct ErrorDetails {
  google::rpc::BadRequest bad_request;
  google::rpc::RetryInfo retry;
  google::rpc::ErrorInfo info;
};

ErrorDetails DetailsOf(const grpc::Status& status) {
  ErrorDetails details;
  google::rpc::Status packed;
  if (!packed.ParseFromString(status.error_details())) return details;
  for (const google::protobuf::Any& any : packed.details()) {
    any.UnpackTo(&details.bad_request) || any.UnpackTo(&details.retry) ||
        any.UnpackTo(&details.info);
  }
  return details;
}

// "--top-p (sampling.top_p)".
std::string NameOf(const std::string& field, const FlagNamer& flag_of) {
  const std::string flag = flag_of(field);
  return flag.empty() ? field : flag + " (" + field + ")";
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : "{}";
}

// gRPC's own words for a server that is not there are long, and name each address that the host
// resolved to.
std::string MessageOf(const grpc::Status& status, const std::string& address) {
  const std::string& text = status.error_message();
  if (IsLostConnection(status) && text.starts_with("failed to connect")) {
    return "cannot connect to " + address + "; is cairnd running there?";
  }
  if (IsLostConnection(status) && text.starts_with("DNS resolution failed")) {
    return "no host is known by the name in " + address;
  }
  return text;
}

std::string ErrorJson(const grpc::Status& status, const std::string& address,
                      const FlagNamer& flag_of) {
  const ErrorDetails details = DetailsOf(status);
  google::protobuf::Struct root;
  auto& error = *(*root.mutable_fields())["error"].mutable_struct_value()->mutable_fields();
  error["code"].set_string_value(CodeName(status.error_code()));
  error["message"].set_string_value(MessageOf(status, address));
  if (!details.info.reason().empty()) error["reason"].set_string_value(details.info.reason());
  for (const auto& violation : details.bad_request.field_violations()) {
    auto& entry = *error["field_violations"].mutable_list_value()->add_values();
    auto& fields = *entry.mutable_struct_value()->mutable_fields();
    fields["field"].set_string_value(violation.field());
    fields["description"].set_string_value(violation.description());
    const std::string flag = flag_of(violation.field());
    if (!flag.empty()) fields["flag"].set_string_value(flag);
  }
  if (details.retry.has_retry_delay()) {
    error["retry_delay"].set_string_value(
        google::protobuf::util::TimeUtil::ToString(details.retry.retry_delay()));
  }
  return ToJson(root);
}

}  // namespace

Client& Client::Connected() {
  if (channel_) return *this;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetUserAgentPrefix("cairnctl");
  // A server that comes back is noticed soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  channel_ =
      grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments);
  sessions_ = v1::SessionService::NewStub(channel_);
  decoding_ = v1::DecodeService::NewStub(channel_);
  cache_ = v1::CacheService::NewStub(channel_);
  model_ = v1::ModelService::NewStub(channel_);
  return *this;
}

void Client::Prepare(grpc::ClientContext& context) const {
  using Clock = std::chrono::system_clock;
  const std::chrono::duration<double> timeout(options_.timeout_seconds);
  const auto now = Clock::now();
  if (timeout.count() <= 0 || timeout >= Clock::time_point::max() - now) return;  // 292 years
  context.set_deadline(now + std::chrono::duration_cast<Clock::duration>(timeout));
}

void Client::PrintJson(const google::protobuf::Message& message) { PrintLine(ToJson(message)); }

void Client::PrintLine(const std::string& line) { Print(line + '\n'); }

void Client::Print(std::string_view text) {
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_written && output_error_ == 0) output_error_ = errno;
}

void Client::Fail(const grpc::Status& status, const FlagNamer& flag_of) {
  const bool no_answer =
      IsLostConnection(status) || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  exit_code_ = status.error_code() == grpc::StatusCode::CANCELLED ? kInterrupted
               : no_answer                                        ? kNoAnswer
                                                                  : kRefused;
  const std::string line = options_.json
                               ? ErrorJson(status, options_.address, flag_of)
                               : "cairnctl: " + ErrorText(status, options_.address, flag_of);
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Client::FailUsage(const std::string& message) {
  exit_code_ = kWrongUsage;
  const std::string line =
      options_.json ? ErrorJson(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message),
                                options_.address, flag_of_)
                    : "cairnctl: " + message;
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Client::CheckOutput() {
  Print("");  // and whatever others have left in the buffer
  if (!is_output_lost() && std::ferror(stdout) == 0) return;
  const int earlier = exit_code_;
  Fail(grpc::Status(grpc::StatusCode::DATA_LOSS,
                    std::string("standard output: ") +
                        (is_output_lost() ? std::strerror(output_error_) : "a write failed")));
  if (earlier != 0) exit_code_ = earlier;
}

std::string ErrorText(const grpc::Status& status, const std::string& address,
                      const FlagNamer& flag_of) {
  const ErrorDetails details = DetailsOf(status);
  std::string text = MessageOf(status, address);
  for (const auto& violation : details.bad_request.field_violations()) {
    const std::string& field = violation.field();
    const std::string name = NameOf(field, flag_of);
    if (text.starts_with(field + ":")) {
      text.replace(0, field.size(), name);
    } else if (text.find(field) == std::string::npos) {
      text += "; " + name + ": " + violation.description();
    }
  }
  text = CodeName(status.error_code()) + ": " + text;
  if (details.retry.has_retry_delay()) {
    text +=
        "; try again in " + google::protobuf::util::TimeUtil::ToString(details.retry.retry_delay());
  }
  return text;
}

bool IsLostConnection(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE;
}

}  // namespace cairn
