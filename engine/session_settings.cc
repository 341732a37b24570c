#include "engine/session_settings.h"

#include <chrono>
#include <utility>

#include "engine/message_text.h"
#include "offload/block.h"

namespace cairn {
namespace {

constexpr size_t kIdBytesMax = 63;
constexpr size_t kSaltBytesMax = 64;
constexpr size_t kDisplayNameBytesMax = 256;
constexpr size_t kAnnotationKeyBytesMax = 63;
constexpr size_t kAnnotationValueBytesMax = 1024;
// Added to any moment of this century it is still a time that 64 bits of nanoseconds can say.
constexpr std::chrono::nanoseconds kTtlMax = std::chrono::hours(24 * 365 * 100);

bool IsLowerAlphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

Status ValidateBytes(std::string_view text, size_t bytes_max, const std::string& field) {
  if (text.size() <= bytes_max) return Status();
  return InvalidField(field, "must have at most " + std::to_string(bytes_max) + " bytes, has " +
                                 std::to_string(text.size()));
}

Status ValidateExpiration(const Expiration& expiration, Clock::Wall now) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  if (const auto* moment = std::get_if<Clock::Wall>(&expiration); moment && *moment <= now) {
    // In milliseconds first: between any two moments that a clock can name there is no overflow.
    const auto late = duration_cast<milliseconds>(now.time_since_epoch()) -
                      duration_cast<milliseconds>(moment->time_since_epoch());
    return InvalidField("session.expire_time",
                        "must be in the future, is " + std::to_string(late.count()) + " ms ago");
  }
  const auto* ttl = std::get_if<std::chrono::nanoseconds>(&expiration);
  if (ttl && (ttl->count() <= 0 || *ttl > kTtlMax)) {
    return InvalidField("session.ttl", "must be above 0 and at most 100 years, is " +
                                           std::to_string(ttl->count()) + " ns");
  }
  return Status();
}

Status ValidateAnnotation(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kAnnotationKeyBytesMax) {
    return InvalidField("session.annotations", "a key must have 1 to " +
                                                   std::to_string(kAnnotationKeyBytesMax) +
                                                   " bytes, one has " + std::to_string(key.size()));
  }
  return ValidateBytes(value, kAnnotationValueBytesMax, "session.annotations[" + key + "]");
}

Status ValidateAnnotations(const std::map<std::string, std::string>& annotations) {
  if (annotations.size() > kAnnotationCountMax) {
    return InvalidField("session.annotations",
                        "must have at most " + std::to_string(kAnnotationCountMax) +
                            " entries, has " + std::to_string(annotations.size()));
  }
  for (const auto& [key, value] : annotations) RETURN_IF_ERROR(ValidateAnnotation(key, value));
  return Status();
}

}  // namespace

Status ValidateSessionId(std::string_view id, const std::string& field) {
  if (id.empty() || id.size() > kIdBytesMax) {
    return InvalidField(field, "must have 1 to " + std::to_string(kIdBytesMax) + " bytes, has " +
                                   std::to_string(id.size()));
  }
  for (size_t i = 0; i < id.size(); ++i) {
    if (IsLowerAlphanumeric(id[i]) || (id[i] == '-' && i > 0)) continue;
    return InvalidField(field, "must match [a-z0-9][a-z0-9-]{0,62}, byte " + std::to_string(i) +
                                   " is " + Quoted(id.substr(i, 1)));
  }
  return Status();
}

Status ValidateCacheSalt(std::string_view salt, const std::string& field) {
  return ValidateBytes(salt, kSaltBytesMax, field);
}

Status ValidatePriority(int32_t priority, const std::string& field) {
  if (priority >= 0 && static_cast<uint32_t>(priority) <= kPriorityMax) return Status();
  return InvalidField(
      field, "must be in 0.." + std::to_string(kPriorityMax) + ", is " + std::to_string(priority));
}

Status ValidatePatch(const SessionPatch& patch, uint32_t vocabulary_size, Clock::Wall now) {
  if (patch.display_name) {
    RETURN_IF_ERROR(
        ValidateBytes(*patch.display_name, kDisplayNameBytesMax, "session.display_name"));
  }
  if (patch.expiration) RETURN_IF_ERROR(ValidateExpiration(*patch.expiration, now));
  if (patch.priority) RETURN_IF_ERROR(ValidatePriority(*patch.priority, "session.priority"));
  if (patch.sampling) {
    RETURN_IF_ERROR(ValidateSampling(*patch.sampling, vocabulary_size, "session.sampling."));
  }
  if (patch.annotations) RETURN_IF_ERROR(ValidateAnnotations(*patch.annotations));
  return Status();
}

Status ValidateSettings(const SessionSettings& settings, uint32_t vocabulary_size,
                        Clock::Wall now) {
  return ValidatePatch({settings.display_name, settings.expiration, settings.priority,
                        settings.sampling, settings.pinned, settings.annotations},
                       vocabulary_size, now);
}

void ApplyPatch(const SessionPatch& patch, SessionSettings& settings) {
  if (patch.display_name) settings.display_name = *patch.display_name;
  if (patch.expiration) settings.expiration = *patch.expiration;
  if (patch.priority) settings.priority = *patch.priority;
  if (patch.sampling) settings.sampling = *patch.sampling;
  if (patch.pinned) settings.pinned = *patch.pinned;
  if (patch.annotations) settings.annotations = *patch.annotations;
}

}  // namespace cairn
