#include "engine/calibration.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/small_file.h"

namespace cairn {
namespace {

constexpr size_t kFileBytesMax = 64u << 10;
constexpr uint64_t kBlockBytesMax = 64u << 20;  // more than caches hold; beyond, blocks are shared
constexpr size_t kRepeats = 3;
// What takes longer is measured once, and again if time is left.
constexpr double kRepeatedSecondsMax = 0.03;

// Passes over rows of a sequence that does not exist.
class PassTimer {
 public:
  static Result<PassTimer> Create(Model& model, const std::vector<CalibrationPoint>& points,
                                  const Clock& clock) {
    const KvLayout& layout = model.kv_layout();
    uint64_t table_size = 1, rows_max = 1;
    for (const CalibrationPoint& point : points) {
      const uint64_t end = uint64_t{point.first_position} + point.rows;
      table_size = std::max(table_size, (end + layout.block_tokens - 1) / layout.block_tokens);
      rows_max = std::max<uint64_t>(rows_max, point.rows);
    }
    // The rows of one pass lie in different places, whatever the bound is.
    const uint64_t of_a_pass = rows_max / layout.block_tokens + 2;
    const uint64_t block_count =
        std::min(table_size, std::max(of_a_pass, kBlockBytesMax / layout.block_bytes()));
    ASSIGN_OR_RETURN(std::unique_ptr<Buffer> memory,
                     model.device().Allocate(block_count * layout.block_bytes()));
    PassTimer timer(model, clock, std::move(memory));
    for (uint64_t i = 0; i < table_size; ++i) {
      timer.table_.push_back(timer.memory_->data() + i % block_count * layout.block_bytes());
    }
    timer.tokens_.resize(rows_max);
    std::iota(timer.tokens_.begin(), timer.tokens_.end(), 0u);
    for (uint32_t& token : timer.tokens_) token %= model.config().vocabulary_size;
    return timer;
  }

  Result<double> Once(const CalibrationPoint& point) {
    const BatchSegment segment = {.tokens = std::span(tokens_).first(point.rows),
                                  .first_position = point.first_position,
                                  .blocks = table_.data()};
    const Clock::Monotonic begin = clock_.Now();
    RETURN_IF_ERROR(model_.Forward({&segment, 1}).status());
    return std::chrono::duration<double>(clock_.Now() - begin).count();
  }

  Result<PassSample> Measure(const CalibrationPoint& point) {
    std::array<double, kRepeats> seconds{};
    size_t count = 0;
    for (double all = 0; count < kRepeats && all < kRepeatedSecondsMax; ++count) {
      ASSIGN_OR_RETURN(seconds[count], Once(point));
      all += seconds[count];
    }
    std::sort(seconds.begin(), seconds.begin() + count);
    return PassSample{point.rows, PositionSum(point.first_position, point.rows),
                      seconds[count / 2]};
  }

 private:
  PassTimer(Model& model, const Clock& clock, std::unique_ptr<Buffer> memory)
      : model_(model), clock_(clock), memory_(std::move(memory)) {}

  Model& model_;
  const Clock& clock_;
  std::unique_ptr<Buffer> memory_;
  std::vector<std::byte*> table_;
  std::vector<uint32_t> tokens_;
};

// What a pass will take, going by the passes so far.
double Expected(const CalibrationPoint& point, const std::vector<PassSample>& samples) {
  if (samples.empty()) return 0;
  const Result<PassFit> fit = FitPasses(samples);
  if (fit.ok()) {
    return fit->costs.Seconds(point.rows, PositionSum(point.first_position, point.rows));
  }
  return samples.back().seconds * std::max(1.0, double(point.rows) / samples.back().rows);
}

// Of two measurements the shorter one counts: what else the machine does only ever adds to it.
// `samples` are of `points`.
Status MeasureLongOnesAgain(PassTimer& timer, const std::vector<CalibrationPoint>& points,
                            double budget, std::vector<PassSample>& samples) {
  for (size_t i = 0; i < samples.size(); ++i) {
    PassSample& sample = samples[i];
    if (sample.seconds < kRepeatedSecondsMax) continue;
    budget -= sample.seconds;
    if (budget < 0) break;
    ASSIGN_OR_RETURN(const double seconds, timer.Once(points[i]));
    if (seconds > 0) sample.seconds = std::min(sample.seconds, seconds);
  }
  return Status();
}

Result<std::vector<Calibration>> ReadAll(const std::string& path) {
  return ReadCalibrations(ReadSmallFile(path, kFileBytesMax));
}

}  // namespace

Result<PassFit> MeasurePasses(Model& model, uint32_t rows_max, uint32_t positions_max,
                              std::chrono::nanoseconds time, const Clock& clock) {
  const std::vector<CalibrationPoint> points = CalibrationPoints(rows_max, positions_max);
  ASSIGN_OR_RETURN(PassTimer timer, PassTimer::Create(model, points, clock));
  const double budget = std::chrono::duration<double>(time).count();
  // The first one finds nothing in the caches.
  ASSIGN_OR_RETURN(double spent, timer.Once(points.front()));
  std::vector<CalibrationPoint> measured;
  measured.reserve(points.size());
  std::vector<PassSample> samples;  // of these
  for (const CalibrationPoint& point : points) {
    if (samples.size() >= 2 && spent + Expected(point, samples) > budget) continue;
    ASSIGN_OR_RETURN(samples.emplace_back(), timer.Measure(point));
    if (!(samples.back().seconds > 0)) {
      return Status(Code::kUnavailable, "the clock shows no time passing");
    }
    measured.push_back(point);
    spent += samples.back().seconds;
  }
  RETURN_IF_ERROR(MeasureLongOnesAgain(timer, measured, budget - spent, samples));
  Result<PassFit> fit = FitPasses(samples);
  if (fit.ok() && !(fit->costs.token_s > 0)) {
    return Status(Code::kUnavailable, "long passes took no longer than short ones");
  }
  return fit;
}

std::optional<PassFit> FindCalibration(const std::string& path, const CalibrationSubject& subject) {
  const Result<std::vector<Calibration>> kept = ReadAll(path);
  if (!kept.ok()) return std::nullopt;
  const auto found = std::ranges::find(*kept, subject, &Calibration::subject);
  return found == kept->end() ? std::nullopt : std::optional(found->pass);
}

bool KeepCalibration(const std::string& path, const CalibrationSubject& subject,
                     const PassFit& pass) {
  const Result<std::vector<Calibration>> kept = ReadAll(path);
  std::vector<Calibration> all = kept.ok() ? *kept : std::vector<Calibration>();
  std::erase_if(all, [&](const Calibration& other) { return other.subject == subject; });
  all.push_back({subject, pass});
  return ReplaceSmallFile(path, WriteCalibrations(all));
}

}  // namespace cairn
