// Calibrations that outlive the process, as text: one for each machine, model and thread count.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "offload/cost_model.h"

namespace cairn {

inline constexpr size_t kCalibrationsMax = 64;

struct ChannelCalibration {
  std::string name;  // "host", "disk"
  ChannelCosts costs;
  double spread = 0;
};

struct Calibration {
  std::string machine;  // whatever tells one from another: processor, device
  std::string model;    // its fingerprint
  uint32_t threads = 0;
  PassFit pass;
  std::vector<ChannelCalibration> channels;

  bool IsFor(std::string_view a_machine, std::string_view a_model, uint32_t a_threads) const {
    return machine == a_machine && model == a_model && threads == a_threads;
  }
};

// The newest last; of one machine, model and thread count the last one counts. Only the last
// kCalibrationsMax are written.
std::string WriteCalibrations(std::span<const Calibration> calibrations);

// kDataLoss when the text is damaged, of another version, or says what cannot be. Never throws.
Result<std::vector<Calibration>> ReadCalibrations(std::string_view text);

}  // namespace cairn
