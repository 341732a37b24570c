#include "offload/calibration_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 2;
// What no machine takes: a fit of nonsense, or of one that did something else.
constexpr double kPassSecondsMax = 1000;
constexpr double kTokenSecondsMin = 1e-10, kTokenSecondsMax = 100;
constexpr double kTokenPositionSecondsMax = 1e-4;
constexpr double kRowsMax = 1 << 20;

// Throws what the library throws, and std::out_of_range for what cannot be.
double Number(const Json& object, const char* name, double min, double max) {
  const double value = object.at(name).get<double>();
  if (!(value >= min && value <= max)) throw std::out_of_range(name);
  return value;
}

Json ToJson(const RowFactors& factors) {
  Json list = Json::array();
  for (uint32_t i = 0; i < factors.count(); ++i) {
    list.push_back({{"rows", factors[i].rows}, {"factor", factors[i].factor}});
  }
  return list;
}

RowFactors FactorsFromJson(const Json& list) {
  if (!list.is_array() || list.size() > RowFactors::kKnotsMax) throw std::out_of_range("factors");
  RowFactors factors;
  double rows = 0;
  for (const Json& entry : list) {
    rows = Number(entry, "rows", std::nextafter(rows, HUGE_VAL), kRowsMax);
    factors.Add(rows, Number(entry, "factor", RowFactors::kFactorMin, RowFactors::kFactorMax));
  }
  return factors;
}

Json ToJson(const Calibration& calibration) {
  const PassCosts& costs = calibration.pass.costs;
  return {{"machine", calibration.subject.machine},
          {"model", calibration.subject.model},
          {"threads", calibration.subject.threads},
          {"pass_s", costs.pass_s},
          {"sweep_s", costs.sweep_s},
          {"token_s", costs.token_s},
          {"token_position_s", costs.token_position_s},
          {"fixed_factors", ToJson(costs.fixed_factors)},
          {"position_factors", ToJson(costs.position_factors)},
          {"spread", calibration.pass.spread}};
}

Calibration FromJson(const Json& json) {
  Calibration made;
  made.subject.machine = json.at("machine").get<std::string>();
  made.subject.model = json.at("model").get<std::string>();
  made.subject.threads = static_cast<uint32_t>(Number(json, "threads", 0, 1 << 16));
  made.pass = {{.pass_s = Number(json, "pass_s", 0, kPassSecondsMax),
                .sweep_s = Number(json, "sweep_s", 0, kPassSecondsMax),
                .token_s = Number(json, "token_s", kTokenSecondsMin, kTokenSecondsMax),
                .token_position_s = Number(json, "token_position_s", 0, kTokenPositionSecondsMax),
                .fixed_factors = FactorsFromJson(json.at("fixed_factors")),
                .position_factors = FactorsFromJson(json.at("position_factors"))},
               Number(json, "spread", 0, 10)};
  return made;
}

}  // namespace

std::string WriteCalibrations(std::span<const Calibration> calibrations) {
  if (calibrations.size() > kCalibrationsMax) calibrations = calibrations.last(kCalibrationsMax);
  Json list = Json::array();
  for (const Calibration& calibration : calibrations) list.push_back(ToJson(calibration));
  const Json json = {{"version", kVersion}, {"calibrations", std::move(list)}};
  return json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<Calibration>> ReadCalibrations(std::string_view text) {
  try {  // the library reports by exception; this is its border
    const Json json = Json::parse(text);
    if (json.at("version").get<int>() != kVersion) {
      return Status(Code::kDataLoss, "calibrations of another version");
    }
    const Json& list = json.at("calibrations");
    if (!list.is_array() || list.size() > kCalibrationsMax) {
      return Status(Code::kDataLoss, "calibrations: not a list, or too long");
    }
    std::vector<Calibration> calibrations;
    for (const Json& entry : list) calibrations.push_back(FromJson(entry));
    return calibrations;
  } catch (const std::exception& error) {
    return Status(Code::kDataLoss, std::string("calibrations: ") + error.what());
  }
}

}  // namespace cairn
