// Parts that several requests have in common, for the sources of service/wire.h.
#pragma once

#include <string>

#include "base/status.h"
#include "cairn/v1/common.pb.h"
#include "engine/api.h"

namespace cairn {

// "sessions/abc" -> "abc"; kInvalidArgument naming `field`.
Result<std::string> IdFromName(const std::string& name, const std::string& field);

// A content that must be there, or that may be (absent: std::monostate).
Result<Content> RequiredContent(bool is_present, const v1::Content& content);
Result<Content> OptionalContent(bool is_present, const v1::Content& content);

}  // namespace cairn
