// What forward passes cost on this machine, so that the first restore of a server is planned as
// well as its hundredth: measured when it starts, or read from the file in which an earlier one
// left it.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/model.h"
#include "offload/calibration_file.h"

namespace cairn {

// Runs passes of up to `rows_max` rows at positions below `positions_max`, over blocks of its own,
// for as long as `time` allows; two of them in any case. kResourceExhausted without memory for the
// blocks, kUnavailable when `clock` shows no time passing, or what was measured makes no sense, as
// on a machine that does much else. Threads: that of the model.
Result<PassFit> MeasurePasses(Model& model, uint32_t rows_max, uint32_t positions_max,
                              std::chrono::nanoseconds time, const Clock& clock);

// What the file at `path` says of `subject`. Nothing when it says nothing, or cannot be read.
std::optional<PassFit> FindCalibration(const std::string& path, const CalibrationSubject& subject);

// Adds it to what the file says of others. False when it cannot be written: a cache that is missing
// costs the next start some time, and nothing else.
bool KeepCalibration(const std::string& path, const CalibrationSubject& subject,
                     const PassFit& pass);

}  // namespace cairn
