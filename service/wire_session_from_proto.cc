// Sessions as they are made and changed: settings, and the masks of updates.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/session_settings.h"
#include "service/wire.h"
#include "service/wire_fields.h"
#include "service/wire_times.h"

namespace cairn {
namespace {

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

// The bound is looked at before anything is copied: a message may hold millions.
Result<std::map<std::string, std::string>> AnnotationsFromProto(const v1::Session& session) {
  if (session.annotations_size() > static_cast<int>(kAnnotationCountMax)) {
    return InvalidField("session.annotations",
                        "must have at most " + std::to_string(kAnnotationCountMax) +
                            " entries, has " + std::to_string(session.annotations_size()));
  }
  return std::map<std::string, std::string>(session.annotations().begin(),
                                            session.annotations().end());
}

Result<SessionSettings> SettingsFromProto(const v1::Session& session) {
  SessionSettings settings;
  settings.display_name = session.display_name();
  ASSIGN_OR_RETURN(settings.expiration, ExpirationFromProto(session));
  if (session.has_priority()) settings.priority = session.priority();
  settings.sampling = FromProto(session.sampling());
  settings.pinned = session.pinned();
  ASSIGN_OR_RETURN(settings.annotations, AnnotationsFromProto(session));
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
    patch.sampling = FromProto(session.sampling());
  } else if (path == "pinned") {
    patch.pinned = session.pinned();
  } else if (path == "annotations") {
    ASSIGN_OR_RETURN(patch.annotations, AnnotationsFromProto(session));
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

Result<UpdateSessionRequest> FromProto(const v1::UpdateSessionRequest& request) {
  const v1::Session& session = request.session();
  UpdateSessionRequest update;
  ASSIGN_OR_RETURN(update.id, IdFromName(session.name(), "session.name"));
  update.etag = session.etag();
  if (!request.has_update_mask()) {
    for (const std::string& path : PathsThatAreSet(session)) {
      RETURN_IF_ERROR(AddToPatch(path, "session", session, update.patch));
    }
    if (!session.cache_salt().empty()) update.cache_salt = session.cache_salt();
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

}  // namespace cairn
