// The rules for what a user sets of a session. Errors name fields as the wire does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "engine/api.h"

namespace cairn {

// [a-z0-9][a-z0-9-]{0,62}, else kInvalidArgument naming `field`.
Status ValidateSessionId(std::string_view id, const std::string& field);

inline constexpr size_t kAnnotationCountMax = 32;

// At most 64 bytes.
Status ValidateCacheSalt(std::string_view salt, const std::string& field);

// 0..100.
Status ValidatePriority(int32_t priority, const std::string& field);

// Every setting, with names under "session.". `now`: an expire_time must lie after it.
Status ValidateSettings(const SessionSettings& settings, uint32_t vocabulary_size, Clock::Wall now);
// The same for what a patch sets.
Status ValidatePatch(const SessionPatch& patch, uint32_t vocabulary_size, Clock::Wall now);

void ApplyPatch(const SessionPatch& patch, SessionSettings& settings);

}  // namespace cairn
