#include <algorithm>
#include <utility>

#include "engine/session_settings.h"
#include "service/wire.h"
#include "service/wire_fields.h"

namespace cairn {
namespace {

constexpr int32_t kPageSizeMax = 1000;

Status CheckNotNegative(int64_t value, const std::string& field) {
  if (value >= 0) return Status();
  return InvalidField(field, "must not be negative, is " + std::to_string(value));
}

Result<std::optional<int64_t>> CountFromProto(bool is_present, int64_t value,
                                              const std::string& field) {
  if (!is_present) return std::optional<int64_t>();
  RETURN_IF_ERROR(CheckNotNegative(value, field));
  return std::optional<int64_t>(value);
}

}  // namespace

Result<SessionRef> FromProto(const v1::GetSessionRequest& request) {
  ASSIGN_OR_RETURN(std::string id, IdFromName(request.name(), "name"));
  return SessionRef{std::move(id)};
}

Result<SessionRef> FromProto(const v1::DeleteSessionRequest& request) {
  ASSIGN_OR_RETURN(std::string id, IdFromName(request.name(), "name"));
  return SessionRef{std::move(id)};
}

Result<SessionRef> FromProto(const v1::PrefetchSessionRequest& request) {
  ASSIGN_OR_RETURN(std::string id, IdFromName(request.name(), "name"));
  return SessionRef{std::move(id)};
}

Result<ExplainRequest> FromProto(const v1::ExplainRestoreRequest& request) {
  ASSIGN_OR_RETURN(std::string id, IdFromName(request.name(), "name"));
  return ExplainRequest{std::move(id), request.last()};
}

Result<ListSessionsRequest> FromProto(const v1::ListSessionsRequest& request) {
  RETURN_IF_ERROR(CheckNotNegative(request.page_size(), "page_size"));
  return ListSessionsRequest{.page_size = std::min(request.page_size(), kPageSizeMax),
                             .page_token = request.page_token()};
}

Result<ForkSessionRequest> FromProto(const v1::ForkSessionRequest& request) {
  ForkSessionRequest fork;
  ASSIGN_OR_RETURN(fork.id, IdFromName(request.name(), "name"));
  fork.new_id = request.session_id();
  if (!fork.new_id.empty()) RETURN_IF_ERROR(ValidateSessionId(fork.new_id, "session_id"));
  ASSIGN_OR_RETURN(fork.token_count,
                   CountFromProto(request.has_token_count(), request.token_count(), "token_count"));
  return fork;
}

Result<TruncateRequest> FromProto(const v1::TruncateSessionRequest& request) {
  TruncateRequest truncate;
  ASSIGN_OR_RETURN(truncate.id, IdFromName(request.name(), "name"));
  RETURN_IF_ERROR(CheckNotNegative(request.token_count(), "token_count"));
  truncate.token_count = request.token_count();
  return truncate;
}

Result<AppendRequest> FromProto(const v1::AppendContentRequest& request) {
  AppendRequest append;
  ASSIGN_OR_RETURN(append.id, IdFromName(request.name(), "name"));
  ASSIGN_OR_RETURN(append.content, RequiredContent(request.has_content(), request.content()));
  ASSIGN_OR_RETURN(append.expected_token_count,
                   CountFromProto(request.has_expected_token_count(),
                                  request.expected_token_count(), "expected_token_count"));
  return append;
}

Result<DecodeRequest> FromProto(const v1::DecodeRequest& request) {
  DecodeRequest decode;
  ASSIGN_OR_RETURN(decode.id, IdFromName(request.name(), "name"));
  ASSIGN_OR_RETURN(decode.content, OptionalContent(request.has_content(), request.content()));
  ASSIGN_OR_RETURN(decode.expected_token_count,
                   CountFromProto(request.has_expected_token_count(),
                                  request.expected_token_count(), "expected_token_count"));
  ASSIGN_OR_RETURN(
      decode.start_position,
      CountFromProto(request.has_start_position(), request.start_position(), "start_position"));
  decode.max_tokens = request.max_tokens();
  decode.sampling = FromProto(request.sampling());
  return decode;
}

Result<GenerateRequest> FromProto(const v1::GenerateRequest& request) {
  GenerateRequest generate;
  ASSIGN_OR_RETURN(generate.content, RequiredContent(request.has_content(), request.content()));
  generate.max_tokens = request.max_tokens();
  generate.sampling = FromProto(request.sampling());
  if (request.has_priority()) generate.priority = request.priority();
  generate.cache_salt = request.cache_salt();
  return generate;
}

Result<ReadTokensRequest> FromProto(const v1::ReadTokensRequest& request) {
  ReadTokensRequest read;
  ASSIGN_OR_RETURN(read.id, IdFromName(request.name(), "name"));
  RETURN_IF_ERROR(CheckNotNegative(request.start_position(), "start_position"));
  RETURN_IF_ERROR(CheckNotNegative(request.token_count(), "token_count"));
  read.start_position = request.start_position();
  read.token_count = request.token_count();
  return read;
}

Result<SuspendRequest> FromProto(const v1::SuspendSessionRequest& request) {
  SuspendRequest suspend;
  ASSIGN_OR_RETURN(suspend.id, IdFromName(request.name(), "name"));
  switch (request.tier()) {
    case v1::TIER_HOST:
      suspend.tier = Tier::kHost;
      return suspend;
    case v1::TIER_DISK:
      suspend.tier = Tier::kDisk;
      return suspend;
    case v1::TIER_ABSENT:
      suspend.tier = Tier::kAbsent;
      return suspend;
    default:
      return InvalidField("tier", "must be TIER_HOST, TIER_DISK or TIER_ABSENT, is " +
                                      std::to_string(request.tier()));
  }
}

Result<LookupRequest> FromProto(const v1::LookupPrefixRequest& request) {
  LookupRequest lookup;
  ASSIGN_OR_RETURN(lookup.content, RequiredContent(request.has_content(), request.content()));
  RETURN_IF_ERROR(ValidateCacheSalt(request.cache_salt(), "cache_salt"));
  lookup.cache_salt = request.cache_salt();
  return lookup;
}

Result<std::optional<Tier>> FromProto(const v1::ClearCacheRequest& request) {
  switch (request.tier()) {
    case v1::TIER_UNSPECIFIED:
      return std::optional<Tier>();
    case v1::TIER_DEVICE:
      return std::optional(Tier::kDevice);
    case v1::TIER_HOST:
      return std::optional(Tier::kHost);
    case v1::TIER_DISK:
      return std::optional(Tier::kDisk);
    case v1::TIER_REMOTE:
      return std::optional(Tier::kRemote);
    default:
      return InvalidField("tier",
                          "must be a tier that holds blocks, is " + std::to_string(request.tier()));
  }
}

Result<Content> FromProto(const v1::TokenizeRequest& request) {
  return RequiredContent(request.has_content(), request.content());
}

Result<std::vector<uint32_t>> FromProto(const v1::DetokenizeRequest& request) {
  return std::vector<uint32_t>(request.ids().begin(), request.ids().end());
}

Result<Done> FromProto(const v1::GetCacheStatsRequest&) { return Done(); }
Result<Done> FromProto(const v1::GetModelRequest&) { return Done(); }

}  // namespace cairn
