// What a forward pass costs, learned from those that were made: seconds = pass + token * rows +
// token_position * (sum of the rows' positions). A fit by least squares of relative errors in which
// old passes fade; passes of few rows, which the sweep over the weights rules, are left out.
// Threads: one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "offload/restore_problem.h"

namespace cairn {

class PassFit {
 public:
  static constexpr uint32_t kRowsMin = 16;

  void Add(uint32_t row_count, double position_sum, double seconds);
  // None before the first pass.
  std::optional<PassCosts> costs() const { return costs_; }
  // How far predictions were off lately, as a share.
  double relative_error() const { return relative_error_; }

 private:
  static constexpr size_t kTerms = 3;
  using Terms = std::array<double, kTerms>;
  Terms Solve() const;

  std::array<Terms, kTerms> products_{};  // sums over passes, weighted, of terms times terms
  Terms targets_{};                       // and of terms times seconds
  std::optional<PassCosts> costs_;
  double relative_error_ = kErrorAtFirst;

  static constexpr double kErrorAtFirst = 0.2;
};

}  // namespace cairn
