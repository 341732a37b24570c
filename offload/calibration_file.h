// Calibrations that outlive the process, as text: one for each machine, model and thread count.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "offload/pass_fit.h"

namespace cairn {

inline constexpr size_t kCalibrationsMax = 64;

// Whose passes were measured.
struct CalibrationSubject {
  std::string machine;  // whatever tells one from another: processor, arithmetic
  std::string model;    // its fingerprint
  uint32_t threads = 0;
  friend bool operator==(const CalibrationSubject&, const CalibrationSubject&) = default;
};

struct Calibration {
  CalibrationSubject subject;
  PassFit pass;
};

// The newest last; only the last kCalibrationsMax are written.
std::string WriteCalibrations(std::span<const Calibration> calibrations);

// kDataLoss when the text is damaged, of another version, or says what cannot be. Never throws.
Result<std::vector<Calibration>> ReadCalibrations(std::string_view text);

}  // namespace cairn
