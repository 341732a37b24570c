#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/session_settings.h"
#include "service/wire.h"
#include "service/wire_times.h"

namespace cairn {
namespace {

constexpr std::string_view kSessionPrefix = "sessions/";
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

ChatContent ChatFromProto(const v1::ChatMessages& chat) {
  ChatContent content;
  content.omit_generation_prompt = chat.omit_generation_prompt();
  content.messages.reserve(chat.messages_size());
  for (const v1::ChatMessage& message : chat.messages()) {
    content.messages.push_back({.role = message.role(), .content = message.content()});
  }
  return content;
}

Result<Content> ContentFromProto(const v1::Content& content) {
  switch (content.kind_case()) {
    case v1::Content::kText:
      if (content.text().empty()) return InvalidField("content.text", "is empty");
      return Content(content.text());
    case v1::Content::kChat:
      if (content.chat().messages().empty()) {
        return InvalidField("content.chat.messages", "is empty");
      }
      return Content(ChatFromProto(content.chat()));
    case v1::Content::kTokens:
      if (content.tokens().ids().empty()) return InvalidField("content.tokens.ids", "is empty");
      return Content(
          std::vector<uint32_t>(content.tokens().ids().begin(), content.tokens().ids().end()));
    case v1::Content::KIND_NOT_SET:
      break;
  }
  return InvalidField("content", "must have one of text, chat, tokens");
}

Result<Expiration> ExpirationFromProto(const v1::Session& session) {
  switch (session.expiration_case()) {
    case v1::Session::kExpireTime: {
      ASSIGN_OR_RETURN(const Clock::Wall time,
                       TimeFromProto(session.expire_time(), "session.expire_time"));
      return Expiration(time);
    }
    case v1::Session::kTtl: {
      ASSIGN_OR_RETURN(const std::chrono::nanoseconds ttl,
                       DurationFromProto(session.ttl(), "session.ttl"));
      return Expiration(ttl);
    }
    case v1::Session::EXPIRATION_NOT_SET:
      break;
  }
  return Expiration();
}

std::map<std::string, std::string> AnnotationsFromProto(const v1::Session& session) {
  return {session.annotations().begin(), session.annotations().end()};
}

Result<SessionSettings> SettingsFromProto(const v1::Session& session) {
  SessionSettings settings;
  settings.display_name = session.display_name();
  ASSIGN_OR_RETURN(settings.expiration, ExpirationFromProto(session));
  if (session.has_priority()) settings.priority = session.priority();
  settings.sampling = cairn::FromProto(session.sampling());
  settings.pinned = session.pinned();
  settings.annotations = AnnotationsFromProto(session);
  return settings;
}

// Without a mask, an update changes what the session that came with it sets.
std::vector<std::string> PathsThatAreSet(const v1::Session& session) {
  std::vector<std::string> paths;
  if (!session.display_name().empty()) paths.push_back("display_name");
  if (session.has_expire_time()) paths.push_back("expire_time");
  if (session.has_ttl()) paths.push_back("ttl");
  if (session.has_priority()) paths.push_back("priority");
  if (session.has_sampling()) paths.push_back("sampling");
  if (session.pinned()) paths.push_back("pinned");
  if (!session.annotations().empty()) paths.push_back("annotations");
  return paths;
}

bool IsOtherFieldOfSession(const std::string& path) {
  const std::string name = path.substr(0, path.find('.'));
  return v1::Session::descriptor()->FindFieldByName(name) != nullptr;
}

// Puts the value that `session` has at `path` into `patch`; `field` is the path's own place.
Status AddToPatch(const std::string& path, const std::string& field, const v1::Session& session,
                  SessionPatch& patch) {
  if (path == "display_name") {
    patch.display_name = session.display_name();
  } else if (path == "expire_time" || path == "ttl") {
    ASSIGN_OR_RETURN(patch.expiration, ExpirationFromProto(session));
  } else if (path == "priority") {
    patch.priority = session.has_priority() ? session.priority() : SessionSettings().priority;
  } else if (path == "sampling") {
    patch.sampling = cairn::FromProto(session.sampling());
  } else if (path == "pinned") {
    patch.pinned = session.pinned();
  } else if (path == "annotations") {
    patch.annotations = AnnotationsFromProto(session);
  } else if (path.starts_with("sampling.") || path.starts_with("annotations.")) {
    return InvalidField(field, "must name " + path.substr(0, path.find('.')) + " as a whole");
  } else if (IsOtherFieldOfSession(path)) {
    return InvalidField(field, path + " cannot be changed");
  } else {
    return InvalidField(field, "is not a field of a session");
  }
  return Status();
}

Status CheckMaskMatchesExpiration(const std::string& path, const std::string& field,
                                  const v1::Session& session,
                                  const google::protobuf::FieldMask& mask) {
  const auto has_path = [&](const char* other) {
    return std::find(mask.paths().begin(), mask.paths().end(), other) != mask.paths().end();
  };
  if (path == "ttl" && session.has_expire_time() && !has_path("expire_time")) {
    return InvalidField(field, "names ttl, but the session sets expire_time");
  }
  if (path == "expire_time" && session.has_ttl() && !has_path("ttl")) {
    return InvalidField(field, "names expire_time, but the session sets ttl");
  }
  return Status();
}

}  // namespace

std::string SessionName(const std::string& id) { return std::string(kSessionPrefix) + id; }

Result<std::string> ParseSessionName(const std::string& name) {
  if (!name.starts_with(kSessionPrefix)) {
    return InvalidField("name", "must be sessions/{id}");
  }
  std::string id = name.substr(kSessionPrefix.size());
  RETURN_IF_ERROR(ValidateSessionId(id, "name"));
  return id;
}

Result<Content> RequiredContent(bool is_present, const v1::Content& content) {
  if (!is_present) return InvalidField("content", "must be given");
  return ContentFromProto(content);
}

Result<Content> OptionalContent(bool is_present, const v1::Content& content) {
  if (!is_present) return Content();
  return ContentFromProto(content);
}

SamplingParams FromProto(const v1::SamplingParams& proto) {
  SamplingParams params;
  if (proto.has_temperature()) params.temperature = proto.temperature();
  if (proto.has_top_p()) params.top_p = proto.top_p();
  if (proto.has_top_k()) params.top_k = proto.top_k();
  if (proto.has_min_p()) params.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) params.repetition_penalty = proto.repetition_penalty();
  if (proto.has_presence_penalty()) params.presence_penalty = proto.presence_penalty();
  if (proto.has_frequency_penalty()) params.frequency_penalty = proto.frequency_penalty();
  if (proto.has_seed()) params.seed = proto.seed();
  params.stop.assign(proto.stop().begin(), proto.stop().end());
  params.stop_token_ids.assign(proto.stop_token_ids().begin(), proto.stop_token_ids().end());
  params.ignore_eos = proto.ignore_eos();
  params.logit_bias.insert(proto.logit_bias().begin(), proto.logit_bias().end());
  if (proto.has_logprobs()) params.logprobs = proto.logprobs();
  return params;
}

Result<CreateSessionRequest> FromProto(const v1::CreateSessionRequest& request) {
  CreateSessionRequest create;
  create.id = request.session_id();
  if (!create.id.empty()) RETURN_IF_ERROR(ValidateSessionId(create.id, "session_id"));
  if (!request.session().name().empty()) {
    return InvalidField("session.name", "must be empty; session_id names a new session");
  }
  ASSIGN_OR_RETURN(create.settings, SettingsFromProto(request.session()));
  create.cache_salt = request.session().cache_salt();
  ASSIGN_OR_RETURN(create.content, OptionalContent(request.has_content(), request.content()));
  return create;
}

Result<ListSessionsRequest> FromProto(const v1::ListSessionsRequest& request) {
  RETURN_IF_ERROR(CheckNotNegative(request.page_size(), "page_size"));
  return ListSessionsRequest{.page_size = std::min(request.page_size(), kPageSizeMax),
                             .page_token = request.page_token()};
}

Result<UpdateSessionRequest> FromProto(const v1::UpdateSessionRequest& request) {
  const v1::Session& session = request.session();
  if (!session.name().starts_with(kSessionPrefix)) {
    return InvalidField("session.name", "must be sessions/{id}");
  }
  UpdateSessionRequest update;
  update.id = session.name().substr(kSessionPrefix.size());
  RETURN_IF_ERROR(ValidateSessionId(update.id, "session.name"));
  update.etag = session.etag();
  if (!request.has_update_mask()) {
    for (const std::string& path : PathsThatAreSet(session)) {
      RETURN_IF_ERROR(AddToPatch(path, "session", session, update.patch));
    }
    return update;
  }
  const google::protobuf::FieldMask& mask = request.update_mask();
  for (int i = 0; i < mask.paths_size(); ++i) {
    const std::string field = "update_mask.paths[" + std::to_string(i) + "]";
    RETURN_IF_ERROR(CheckMaskMatchesExpiration(mask.paths(i), field, session, mask));
    RETURN_IF_ERROR(AddToPatch(mask.paths(i), field, session, update.patch));
  }
  return update;
}

Result<ForkSessionRequest> FromProto(const v1::ForkSessionRequest& request) {
  ForkSessionRequest fork;
  ASSIGN_OR_RETURN(fork.id, ParseSessionName(request.name()));
  fork.new_id = request.session_id();
  if (!fork.new_id.empty()) RETURN_IF_ERROR(ValidateSessionId(fork.new_id, "session_id"));
  ASSIGN_OR_RETURN(fork.token_count,
                   CountFromProto(request.has_token_count(), request.token_count(), "token_count"));
  return fork;
}

Result<TruncateRequest> FromProto(const v1::TruncateSessionRequest& request) {
  TruncateRequest truncate;
  ASSIGN_OR_RETURN(truncate.id, ParseSessionName(request.name()));
  RETURN_IF_ERROR(CheckNotNegative(request.token_count(), "token_count"));
  truncate.token_count = request.token_count();
  return truncate;
}

Result<AppendRequest> FromProto(const v1::AppendContentRequest& request) {
  AppendRequest append;
  ASSIGN_OR_RETURN(append.id, ParseSessionName(request.name()));
  ASSIGN_OR_RETURN(append.content, RequiredContent(request.has_content(), request.content()));
  ASSIGN_OR_RETURN(append.expected_token_count,
                   CountFromProto(request.has_expected_token_count(),
                                  request.expected_token_count(), "expected_token_count"));
  return append;
}

Result<DecodeRequest> FromProto(const v1::DecodeRequest& request) {
  DecodeRequest decode;
  ASSIGN_OR_RETURN(decode.id, ParseSessionName(request.name()));
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
  ASSIGN_OR_RETURN(read.id, ParseSessionName(request.name()));
  RETURN_IF_ERROR(CheckNotNegative(request.start_position(), "start_position"));
  RETURN_IF_ERROR(CheckNotNegative(request.token_count(), "token_count"));
  read.start_position = request.start_position();
  read.token_count = request.token_count();
  return read;
}

Result<SuspendRequest> FromProto(const v1::SuspendSessionRequest& request) {
  SuspendRequest suspend;
  ASSIGN_OR_RETURN(suspend.id, ParseSessionName(request.name()));
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
  RETURN_IF_ERROR(ValidateCacheSalt(request.cache_salt()));
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

}  // namespace cairn
