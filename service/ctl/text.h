// What the answers of the server look like in a terminal.
#pragma once

#include <string>

#include "cairn/v1/cache_service.pb.h"
#include "cairn/v1/common.pb.h"
#include "cairn/v1/model_service.pb.h"
#include "cairn/v1/session_service.pb.h"

namespace cairn {

std::string SessionText(const v1::Session& session);  // several lines
std::string SessionRow(const v1::Session& session);   // one line, in columns
std::string SessionRowTitles();
std::string UsageText(const v1::Usage& usage);  // one line
std::string LookupText(const v1::LookupPrefixResponse& response);
std::string CacheStatsText(const v1::CacheStats& stats);
std::string RestoreText(const v1::RestoreReport& report);
std::string ModelText(const v1::Model& model);

}  // namespace cairn
