// A positive quantity that is measured over and over, with outliers, and that may change for good:
// the estimate moves slowly with single samples and at once when the latest ones agree that
// something is different.
//
// It works on logarithms, so that ten times as much and a tenth count alike. At first the estimate
// is the median of what it began with and the samples. Then a sample moves it by a small share of
// its deviation, and deviations are clipped at a few times the usual one (Huber: Robust Estimation
// of a Location Parameter, 1964). When the median of the last
// kWindow samples, and most of them, lie far off on one side, the estimate becomes that median.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace cairn {

class RobustRate {
 public:
  static constexpr uint32_t kWindow = 7;

  static constexpr double kChangeMin = 0.4;  // a factor of 1.5, either way

  // From `change_min` on, as a logarithm, samples may tell of a change.
  explicit RobustRate(double value, double spread = kSpreadMin, double change_min = kChangeMin)
      : log_start_(std::log(value)),
        log_value_(log_start_),
        spread_(std::max(spread, kSpreadMin)),
        change_min_(change_min) {}

  double value() const { return std::exp(log_value_); }
  // The mean deviation of samples from it, as a share.
  double spread() const { return spread_; }
  uint64_t change_count() const { return change_count_; }

  // Samples that are no positive number are none.
  void Note(double sample) {
    if (!(sample > 0) || !std::isfinite(sample)) return;
    const double deviation = std::log(sample) - log_value_;
    latest_[note_count_++ % kWindow] = log_value_ + deviation;
    const double clipped = std::clamp(deviation, -kClip * spread_, kClip * spread_);
    log_value_ = note_count_ <= kWindow ? MedianFromTheStart() : log_value_ + kShare * clipped;
    spread_ = std::max(kSpreadMin, spread_ + kShare * (std::abs(clipped) - spread_));
    if (note_count_ >= kWindow) FindChange();
  }

 private:
  static constexpr double kSpreadMin = 0.01;
  static constexpr double kShare = 0.08;
  static constexpr double kClip = 3;

  double MedianFromTheStart() const {
    std::array<double, kWindow + 1> sorted{log_start_};
    const size_t count = note_count_ + 1;
    std::copy_n(latest_.begin(), note_count_, sorted.begin() + 1);
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
  }

  void FindChange() {
    std::array<double, kWindow> sorted = latest_;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted[kWindow / 2];
    const double far = std::max(change_min_, 2 * spread_);
    if (std::abs(median - log_value_) < far) return;
    const auto is_far = [&](double sample) {
      return median > log_value_ ? sample > log_value_ + far / 2 : sample < log_value_ - far / 2;
    };
    if (std::count_if(sorted.begin(), sorted.end(), is_far) < kWindow - 1) return;
    log_value_ = median;
    spread_ = std::max(kSpreadMin, (sorted[kWindow - 2] - sorted[1]) / 2);
    ++change_count_;
  }

  double log_start_;
  double log_value_;
  double spread_;
  double change_min_;
  std::array<double, kWindow> latest_{};
  uint64_t note_count_ = 0;
  uint64_t change_count_ = 0;
};

}  // namespace cairn
