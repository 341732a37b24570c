// The log: one line an event, written to stderr. Layers below the service log only what an operator
// must see (a watchdog's verdict, a dropped copy); everything else is a Status or a metric.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

void Log(LogLevel level, std::string_view line);
inline void LogInfo(std::string_view line) { Log(LogLevel::kInfo, line); }
inline void LogWarning(std::string_view line) { Log(LogLevel::kWarning, line); }
inline void LogError(std::string_view line) { Log(LogLevel::kError, line); }

// Lines below `level` are not written. Any thread.
void SetLogLevel(LogLevel level);

}  // namespace cairn
