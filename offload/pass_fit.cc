#include "offload/pass_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

namespace cairn {
namespace {

// pass + token * max(ridge, rows) + token_position * position_sum.
constexpr size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

constexpr int kRounds = 4;       // of reweighting
constexpr double kHuber = 0.05;  // relative errors up to this count in full
// Errors up to this are the machine's, beyond rather an accident's.
constexpr double kTrusted = 0.3;
constexpr double kPlausible = 3;  // of a factor of positions
constexpr double kTelling = 0.1;  // of a pass's time, that positions make or not

struct Row {
  Terms terms;       // over the seconds, so that errors are relative
  double given = 1;  // weight of the sample
  double weight = 1;
};

double ErrorOf(const Row& row, const Terms& constants) {
  double sum = -1;
  for (size_t i = 0; i < kTerms; ++i) sum += row.terms[i] * constants[i];
  return sum;
}

// Solves the normal equations of the terms in `mask`; the others are zero. Nothing when they say
// the same thing twice, or when a constant would be negative.
std::optional<Terms> Solve(const std::vector<Row>& rows, uint32_t mask) {
  std::vector<size_t> used;
  for (size_t i = 0; i < kTerms; ++i) {
    if (mask >> i & 1) used.push_back(i);
  }
  const size_t n = used.size();
  std::array<std::array<double, kTerms + 1>, kTerms> m{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j)
        m[i][j] += row.weight * row.terms[used[i]] * row.terms[used[j]];
      m[i][kTerms] += row.weight * row.terms[used[i]];
    }
  }
  for (size_t i = 0; i < n; ++i) {  // Gauss-Jordan; the matrix is symmetric and definite
    const double scale = m[i][i];
    double diagonal = 0;
    for (const Row& row : rows) diagonal += row.weight * row.terms[used[i]] * row.terms[used[i]];
    if (!(scale > 1e-9 * diagonal)) return std::nullopt;
    for (double& value : m[i]) value /= scale;
    for (size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = m[k][i];
      for (size_t j = 0; j <= kTerms; ++j) m[k][j] -= factor * m[i][j];
    }
  }
  Terms constants{};
  for (size_t i = 0; i < n; ++i) {
    if (!(m[i][kTerms] >= 0)) return std::nullopt;
    constants[used[i]] = m[i][kTerms];
  }
  return constants;
}

double Loss(const std::vector<Row>& rows, const Terms& constants) {
  double loss = 0;
  for (const Row& row : rows) {
    const double error = std::abs(ErrorOf(row, constants));
    loss += row.given * (error <= kHuber ? error * error : kHuber * (2 * error - kHuber));
  }
  return loss;
}

struct RidgeFit {
  Terms constants{};
  double loss = HUGE_VAL;
};

RidgeFit FitWithRidge(std::span<const PassSample> samples, double ridge) {
  RidgeFit best;
  for (uint32_t mask = 1; mask < 1u << kTerms; ++mask) {
    std::vector<Row> rows;
    for (const PassSample& sample : samples) {
      const double ridge_rows = std::max(ridge, double(sample.rows));
      rows.push_back(
          {{1 / sample.seconds, ridge_rows / sample.seconds, sample.position_sum / sample.seconds},
           sample.weight,
           sample.weight});
    }
    for (int round = 0; round < kRounds; ++round) {
      const std::optional<Terms> constants = Solve(rows, mask);
      if (!constants.has_value()) break;
      const double loss = Loss(rows, *constants);
      for (Row& row : rows) {
        const double error = std::abs(ErrorOf(row, *constants));
        row.weight = row.given * (error <= kHuber ? 1 : kHuber / error);
      }
      if (loss < best.loss) best = {*constants, loss};
    }
  }
  return best;
}

// A sample beside the fit: what is fitted of rows and of positions, as shares of what it took.
struct Remainder {
  double rows = 0;
  double of_rows = 0;
  double of_positions = 0;
  double weight = 0;  // of an outlier next to nothing

  Remainder(const PassCosts& costs, const PassSample& sample)
      : rows(sample.rows),
        of_rows(costs.FixedSeconds(sample.rows) / sample.seconds),
        of_positions(costs.PositionSeconds(sample.rows, sample.position_sum) / sample.seconds) {
    const double error = std::abs(std::log(of_rows + of_positions));
    weight = sample.weight * std::pow(kTrusted / std::max(error, kTrusted), 4);
  }
};

// Of passes of about the same rows.
struct RowKind {
  std::vector<Remainder> samples;

  double MeanRows() const {
    double rows = 0, weight = 0;
    for (const Remainder& each : samples) {
      rows += each.weight * each.rows;
      weight += each.weight;
    }
    return rows / weight;
  }
  // Where passes at far and near positions were measured, what those cost. Least squares of
  // relative errors for both factors.
  std::optional<double> PositionFactor() const {
    double rr = 0, rp = 0, pp = 0, r = 0, p = 0;
    double least = 1, most = 0;  // share that positions have
    for (const Remainder& each : samples) {
      rr += each.weight * each.of_rows * each.of_rows;
      rp += each.weight * each.of_rows * each.of_positions;
      pp += each.weight * each.of_positions * each.of_positions;
      r += each.weight * each.of_rows;
      p += each.weight * each.of_positions;
      const double share = each.of_positions / (each.of_rows + each.of_positions);
      least = std::min(least, share);
      most = std::max(most, share);
    }
    if (!(most - least > kTelling)) return std::nullopt;
    const double factor = (rr * p - rp * r) / (rr * pp - rp * rp);
    if (!(factor > 1 / kPlausible && factor < kPlausible)) return std::nullopt;
    return factor;
  }
  double RowFactor(double position_factor) const {
    double rr = 0, r = 0;
    for (const Remainder& each : samples) {
      rr += each.weight * each.of_rows * each.of_rows;
      r += each.weight * each.of_rows * (1 - position_factor * each.of_positions);
    }
    return r / rr;
  }
};

// Puts what the fit leaves of the samples into its factors, by rows in powers of two.
void FitFactors(std::span<const PassSample> samples, PassCosts& costs) {
  std::map<int, RowKind> kinds;
  for (const PassSample& sample : samples) {
    if (!(costs.FixedSeconds(sample.rows) > 0)) return;
    kinds[std::ilogb(sample.rows)].samples.emplace_back(costs, sample);
  }
  RowFactors of_rows, of_positions;
  for (const auto& [key, kind] : kinds) {
    const std::optional<double> factor = kind.PositionFactor();
    if (factor && of_positions.count() < RowFactors::kKnotsMax) {
      of_positions.Add(kind.MeanRows(), *factor);
    }
  }
  for (const auto& [key, kind] : kinds) {
    const double rows = kind.MeanRows();
    if (of_rows.count() < RowFactors::kKnotsMax) {
      of_rows.Add(rows, kind.RowFactor(of_positions.At(rows)));
    }
  }
  costs.fixed_factors = of_rows;
  costs.position_factors = of_positions;
}

}  // namespace

Result<PassFit> FitPasses(std::span<const PassSample> samples) {
  if (samples.size() < 2) return InvalidArgument("a fit takes at least two passes");
  std::set<double> measured = {0};
  for (const PassSample& sample : samples) {
    const bool is_sane = sample.rows > 0 && sample.position_sum >= 0 && sample.seconds > 0 &&
                         sample.weight > 0 && std::isfinite(sample.position_sum) &&
                         std::isfinite(sample.seconds);
    if (!is_sane) return InvalidArgument("a pass without rows or without time is none");
    measured.insert(sample.rows);
  }
  RidgeFit best;
  double best_ridge = 0;
  std::vector<double> ridges;
  for (const double rows : measured) {
    const double last = ridges.empty() ? rows : ridges.back();
    for (const double share : {0.25, 0.5, 0.75, 1.0}) {
      if (rows > last || share == 1) ridges.push_back(last + share * (rows - last));
    }
  }
  for (const double ridge : ridges) {
    const RidgeFit fit = FitWithRidge(samples, ridge);
    // A ridge has to earn its place: without samples below it is a guess.
    if (!(fit.loss < best.loss * 0.99)) continue;
    best = fit;
    best_ridge = ridge;
  }
  if (!(best.loss < HUGE_VAL)) return InvalidArgument("the passes do not tell their costs apart");
  const auto [pass_s, token_s, token_position_s] = best.constants;
  PassCosts costs{.pass_s = pass_s,
                  .sweep_s = token_s * best_ridge,
                  .token_s = token_s,
                  .token_position_s = token_position_s};
  FitFactors(samples, costs);
  double spread = 0;
  for (const PassSample& sample : samples) {
    spread += std::abs(costs.Seconds(sample.rows, sample.position_sum) / sample.seconds - 1);
  }
  return PassFit{costs, spread / static_cast<double>(samples.size())};
}

std::vector<CalibrationPoint> CalibrationPoints(uint32_t rows_max, uint32_t positions_max) {
  std::vector<CalibrationPoint> points;
  const auto add = [&](uint32_t rows, double share) {
    rows = std::min({rows, rows_max, positions_max});
    const auto first = static_cast<uint32_t>(share * (positions_max - rows));
    if (rows > 0) points.push_back({rows, first});
  };
  add(64, 0);
  add(16, 0);
  add(64, 1);
  add(128, 0);
  add(1, 0);
  add(32, 0);
  add(256, 0);
  add(256, 0.5);
  add(16, 1);
  add(1, 1);
  add(4, 0);
  add(32, 0.5);
  return points;
}

}  // namespace cairn
