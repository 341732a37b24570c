#include "engine/pass_fit.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

constexpr double kKept = 0.97;       // of what was known, at each new pass
constexpr double kErrorShare = 0.1;  // of a new error in the mean one
constexpr double kRidge = 1e-6;      // keeps terms apart that have not varied yet

double Predict(const PassCosts& costs, double rows, double position_sum) {
  return costs.pass_s + costs.token_s * rows + costs.token_position_s * position_sum;
}

}  // namespace

void PassFit::Add(uint32_t row_count, double position_sum, double seconds) {
  if (row_count < kRowsMin || seconds <= 0) return;
  if (costs_) {
    const double error = std::abs(Predict(*costs_, row_count, position_sum) / seconds - 1);
    relative_error_ += kErrorShare * (std::min(error, 1.0) - relative_error_);
  }
  const Terms terms = {1 / seconds, row_count / seconds, position_sum / seconds};
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      products_[i][j] = kKept * products_[i][j] + terms[i] * terms[j];
    }
    targets_[i] = kKept * targets_[i] + terms[i];
  }
  const Terms solved = Solve();
  costs_ = PassCosts{.pass_s = solved[0], .token_s = solved[1], .token_position_s = solved[2]};
}

// No cost is negative: coordinate descent over the terms, each at its best given the others.
PassFit::Terms PassFit::Solve() const {
  Terms found{};
  if (costs_) found = {costs_->pass_s, costs_->token_s, costs_->token_position_s};
  constexpr int kRounds = 60;
  for (int round = 0; round < kRounds; ++round) {
    // The rows first, which explain most.
    for (const size_t i : {1, 2, 0}) {
      double rest = targets_[i];
      for (size_t j = 0; j < kTerms; ++j) rest -= j == i ? 0 : products_[i][j] * found[j];
      const double own = products_[i][i] * (1 + kRidge);
      found[i] = own > 0 ? std::max(0.0, rest / own) : 0;
    }
  }
  return found;
}

}  // namespace cairn
