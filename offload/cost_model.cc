#include "offload/cost_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace cairn {
namespace {

constexpr double kSpreadOfFirst = 0.3;  // a kind's first pass may be an odd one
constexpr uint32_t kWeightMax = 16;     // of a kind, in passes; a calibrated one has 1
constexpr double kChangeMin = 0.2;      // processors change their pace by less than disks do
constexpr double kMovedMin = 0.03;      // of a kind's ratio, as a logarithm, to fit anew
constexpr uint32_t kAnchorRowsMax = 512;
constexpr uint32_t kAnchorPositionsMax = 8192;

// Passes of one kind have about as many rows at about the same positions.
std::pair<int, int> KindOf(const PassSample& sample) {
  return {std::ilogb(sample.rows), std::ilogb(sample.position_sum / sample.rows + 256)};
}

}  // namespace

PassCostModel::PassCostModel(const PassFit& calibrated)
    : calibrated_(calibrated.costs), costs_(calibrated.costs), ratio_(1, calibrated.spread) {}

void PassCostModel::Note(const PassSample& sample) {
  if (sample.rows == 0 || !(sample.seconds > 0) || !std::isfinite(sample.seconds)) return;
  const double calibrated = Calibrated(sample);
  if (!(calibrated > 0)) return;
  ratio_.Note(sample.seconds / Predict(sample.rows, sample.position_sum));
  const Kind first{sample, RobustRate(common_ratio_, kSpreadOfFirst, kChangeMin)};
  Kind& kind = kinds_.try_emplace(KindOf(sample), first).first->second;
  kind.latest = sample;
  kind.ratio.Note(sample.seconds / calibrated);
  kind.weight = std::min(kind.weight + 1, kWeightMax);
  ++passes_;
  const double moved = std::abs(std::log(kind.ratio.value() / kind.fitted_ratio));
  const bool is_early = passes_ < last_fit_ + kMovedFitPasses;
  if (passes_ == next_fit_ || (moved > kMovedMin && !is_early)) Refit();
}

// Kinds that were not seen stand where the calibration puts them, times what the seen ones have in
// common: a server that only ever decodes must not forget what a long pass costs.
void PassCostModel::Refit() {
  last_fit_ = passes_;
  next_fit_ = passes_ + std::min(passes_, kRefitPasses);
  std::vector<PassSample> samples;
  std::vector<double> ratios = {1};  // by weight
  for (auto& [key, kind] : kinds_) {
    kind.fitted_ratio = kind.ratio.value();
    samples.push_back(kind.latest);
    samples.back().seconds = Calibrated(kind.latest) * kind.ratio.value();
    samples.back().weight = kind.weight;
    ratios.insert(ratios.end(), kind.weight, kind.ratio.value());
  }
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  common_ratio_ = *middle;
  for (const CalibrationPoint& point : CalibrationPoints(kAnchorRowsMax, kAnchorPositionsMax)) {
    PassSample anchor = {point.rows, PositionSum(point.first_position, point.rows)};
    anchor.seconds = Calibrated(anchor) * common_ratio_;
    if (kinds_.count(KindOf(anchor)) == 0) samples.push_back(anchor);
  }
  const Result<PassFit> fit = FitPasses(samples);
  if (!fit.ok()) return;
  costs_ = fit->costs;
  ratio_ = RobustRate(1, ratio_.spread());
}

}  // namespace cairn
