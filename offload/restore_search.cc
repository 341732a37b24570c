#include "offload/restore_search.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

constexpr double kPrecision = 3e-4;  // of bisection, as a share of the time
constexpr int kBisectionsMax = 40;
constexpr int kRoundsMax = 64;            // of deadlines that follow from each other
constexpr uint32_t kCheckpointsMax = 32;  // of Front, where passes may have to wait
constexpr double kGoodEnough = 2e-3;      // above the bound
constexpr uint32_t kLargeBlocks = 1024;
constexpr int64_t kEffort = 40000;              // steps to better a plan, of a nanosecond or two
constexpr int64_t kEarlyEffort = 10 * kEffort;  // deadlines say less of passes that start early
constexpr int64_t kLargeEffort = 4000;
constexpr int64_t kBoundEffort = 10;
constexpr int64_t kSteps = 32;  // of one source, to either side
constexpr int64_t kReach = 3;   // of two sources at once

// The whole blocks that a channel moves in `seconds`.
uint32_t BlocksIn(const RestoreChannel& channel, double seconds) {
  const double blocks = (seconds - channel.latency_s) / channel.block_s + 1e-9;
  if (!(blocks >= 1)) return 0;
  return blocks >= UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(blocks);
}

}  // namespace

RestoreSearch::RestoreSearch(const RestoreProblem& problem, const RestoreLayout& layout,
                             const RestoreTimes& times)
    : problem_(problem),
      layout_(layout),
      times_(times),
      all_(times.RecomputeEverything()),
      effort_max_(problem.starts_early ? kEarlyEffort : kEffort) {
  std::array<uint32_t, kRestoreChannelsMax> hops{};  // to the end of the way
  for (uint32_t c = 0; c < times.channel_count(); ++c) {
    inner_first_[c] = c;
    for (auto next = problem.channels[c].then; next.has_value(); ++hops[c]) {
      next = problem.channels[*next].then;
    }
  }
  std::sort(inner_first_.begin(), inner_first_.begin() + times.channel_count(),
            [&](uint32_t a, uint32_t b) { return hops[a] > hops[b]; });
}

double RestoreSearch::Seconds(Kind kind, const RecomputeCounts& counts) const {
  return kind == Kind::kWave ? times_.WaveSeconds(counts) : times_.FrontSeconds(counts);
}

RestoreSearch::Found RestoreSearch::Best(Kind kind, double useless_s) const {
  Found best{times_.RecomputeNothing(), useless_s};
  if (layout_.block_count() == 0) return best;
  uint64_t steps = layout_.block_count();  // to try all plans
  for (uint32_t s = 0; s < times_.channel_count() && steps <= uint64_t(effort_max_); ++s) {
    steps *= layout_.count(s) + 1;
  }
  if (steps <= uint64_t(effort_max_)) {
    TryAll(kind, best);
    return best;
  }
  TryWholeSources(kind, best);
  Found met = best;
  const double bound = Bisect(kind, times_.RecomputeNothing(), met);
  // The first layer of Wave waits for every channel that is used: each may be better left alone.
  for (uint32_t s = 0; kind == Kind::kWave && s < times_.channel_count(); ++s) {
    RecomputeCounts counts = times_.RecomputeNothing();
    counts[s] = layout_.count(s);
    Bisect(kind, counts, met);
  }
  const auto is_good = [&] { return best.seconds <= bound * (1 + kGoodEnough); };
  if (is_good()) return best;
  met.seconds = Seconds(kind, met.counts);
  if (met.seconds < best.seconds) best = met;
  // Whole blocks matter where there are few, and waiting passes in any case.
  const bool is_large = layout_.block_count() > kLargeBlocks;
  if (is_large && is_good()) return best;
  int64_t effort = is_large ? kLargeEffort : effort_max_;
  const RecomputeCounts other_start = best.counts;
  TryNeighbours(kind, met.counts, best, effort);
  if (is_good()) return best;
  if (other_start != met.counts) TryNeighbours(kind, other_start, best, effort);
  if (kind == Kind::kFront && !is_good()) MeetPassesEarlier(bound, best);
  return best;
}

void RestoreSearch::MeetPassesEarlier(double too_short, Found& best) const {
  int64_t effort = layout_.block_count() > kLargeBlocks ? kLargeEffort : effort_max_;
  while (effort > 0 && best.seconds - too_short > kGoodEnough * best.seconds) {
    const double deadline = (best.seconds + too_short) / 2;
    RecomputeCounts counts = times_.RecomputeNothing();
    if (MeetPasses(deadline, counts, effort)) {
      best = {counts, std::min(deadline, times_.FrontSeconds(counts))};
    } else {
      too_short = deadline;
    }
  }
}

// About how many steps VisitPasses takes.
int64_t RestoreSearch::WalkEffort(const RecomputeCounts& counts) const {
  const uint32_t pass_blocks = problem_.chunk_tokens / problem_.block_tokens;
  const int64_t passes = times_.WorkOf(counts).block_count / pass_blocks + 1;
  return layout_.row_count() +
         std::min<int64_t>(layout_.block_count(), passes * layout_.row_blocks());
}

void RestoreSearch::TryAll(Kind kind, Found& best) const {
  RecomputeCounts counts = times_.RecomputeNothing();
  while (true) {
    Try(kind, counts, best);
    uint32_t s = 0;
    while (s < times_.channel_count() && counts[s] == layout_.count(s)) counts[s++] = 0;
    if (s == times_.channel_count()) return;
    ++counts[s];
  }
}

bool RestoreSearch::Try(Kind kind, const RecomputeCounts& counts, Found& best) const {
  const double bound = kind == Kind::kWave ? times_.WaveSeconds(counts) : times_.FrontBound(counts);
  if (bound >= best.seconds) return false;
  const double seconds = kind == Kind::kWave ? bound : times_.FrontSeconds(counts);
  if (seconds >= best.seconds) return false;
  best = {counts, seconds};
  return true;
}

double RestoreSearch::Bisect(Kind kind, RecomputeCounts least, Found& met) const {
  double too_short = 0;
  for (int i = 0; i < kBisectionsMax && met.seconds - too_short > kPrecision * met.seconds; ++i) {
    // Whether there is anything to gain; then in large steps from afar, as the best time may be a
    // thousandth of the first one.
    const double deadline = i == 0           ? met.seconds * (1 - kPrecision)
                            : too_short == 0 ? met.seconds / 4
                                             : (met.seconds + too_short) / 2;
    RecomputeCounts counts = least;
    if (!Meets(kind, deadline, counts)) {
      too_short = deadline;
      continue;
    }
    met.counts = least = counts;
    met.seconds = deadline;
    if (kind == Kind::kWave) met.seconds = std::min(deadline, times_.WaveSeconds(counts));
  }
  return too_short;
}

bool RestoreSearch::Meets(Kind kind, double deadline_s, RecomputeCounts& counts) const {
  return kind == Kind::kWave ? MeetWave(deadline_s, counts) : MeetFront(deadline_s, counts);
}

bool RestoreSearch::MeetWave(double deadline_s, RecomputeCounts& counts) const {
  const double layers = problem_.layers;
  for (int round = 0; round < kRoundsMax; ++round) {
    const RestoreTimes::WavePasses passes = times_.WavePassesOf(counts);
    const double compute = passes.first_s;
    const double first_end_s = deadline_s - passes.others_s;
    if (compute > 0 && problem_.compute_backlog_s + compute > first_end_s) return false;
    bool changed = false;
    for (uint32_t n = 0; n < times_.channel_count(); ++n) {
      const uint32_t c = inner_first_[n];
      const double backlog = problem_.channels[c].backlog_s;
      const double last_layer = first_end_s - compute / layers - backlog;
      const double share = problem_.channels[c].comes_whole ? 1 : layers;
      const double first_layer = (first_end_s - compute - backlog) * share;
      const double seconds = std::min(last_layer, first_layer);
      changed |= Relieve(c, all_, BlocksIn(problem_.channels[c], seconds), counts);
    }
    if (!changed) return true;
  }
  return false;
}

bool RestoreSearch::MeetFront(double deadline_s, RecomputeCounts& counts) const {
  const double passes_end = deadline_s - times_.NewSeconds();
  const uint32_t stride = (layout_.row_count() + kCheckpointsMax - 1) / kCheckpointsMax;
  for (int round = 0; round < kRoundsMax; ++round) {
    bool changed = RelieveAll(all_, passes_end, counts);
    const RestoreTimes::Work all = times_.WorkOf(counts);
    if (all.block_count + problem_.new_tokens > 0 &&
        problem_.compute_backlog_s + times_.FrontComputeSeconds(all) > passes_end) {
      return false;
    }
    for (uint32_t row = (layout_.row_count() - 1) / stride * stride; row > 0; row -= stride) {
      const RestoreTimes::Work after = times_.WorkFromRow(counts, row);
      if (after.block_count == 0) continue;
      RecomputeCounts before{};
      for (uint32_t s = 0; s < times_.channel_count(); ++s) {
        before[s] = layout_.CountBeforeRow(row, s);
      }
      const double ready_by = passes_end - times_.FrontComputeSeconds(after);
      changed |= RelieveAll(before, ready_by, counts);
    }
    if (!changed) return true;
  }
  return false;
}

bool RestoreSearch::MeetPasses(double deadline_s, RecomputeCounts& counts, int64_t& effort) const {
  if (!MeetFront(deadline_s, counts)) return false;
  const double passes_end = deadline_s - times_.NewSeconds();
  for (; effort > 0; effort -= WalkEffort(counts)) {
    RelieveAll(all_, passes_end, counts);
    const RestoreTimes::Work all = times_.WorkOf(counts);
    double left = times_.FrontComputeSeconds(all);
    if (all.block_count + problem_.new_tokens > 0 && problem_.compute_backlog_s + left > passes_end)
      return false;
    bool changed = false;
    times_.VisitPasses(counts, [&](const RecomputeCounts& before, const RestoreTimes::Work& work) {
      for (uint32_t n = 0; n < times_.channel_count() && !changed; ++n) {
        const uint32_t c = inner_first_[n];
        const RestoreChannel& channel = problem_.channels[c];
        const uint32_t needed = times_.NeededCount(counts, before, c);
        const uint32_t in_time = BlocksIn(channel, passes_end - left - channel.backlog_s);
        if (needed <= in_time) continue;
        const uint32_t excess = needed - in_time;
        changed = Relieve(c, before, needed - (excess + 3) / 4, counts);
      }
      left -= times_.FrontComputeSeconds(work);
      return !changed;
    });
    if (!changed) return true;
  }
  return false;
}

bool RestoreSearch::RelieveAll(const RecomputeCounts& before, double ready_by_s,
                               RecomputeCounts& counts) const {
  bool changed = false;
  for (uint32_t n = 0; n < times_.channel_count(); ++n) {
    const uint32_t c = inner_first_[n];
    const RestoreChannel& channel = problem_.channels[c];
    changed |= Relieve(c, before, BlocksIn(channel, ready_by_s - channel.backlog_s), counts);
  }
  return changed;
}

bool RestoreSearch::Relieve(uint32_t channel, const RecomputeCounts& before, uint32_t loads_max,
                            RecomputeCounts& counts) const {
  const uint32_t loads = times_.NeededCount(counts, before, channel);
  if (loads <= loads_max) return false;
  uint32_t sources = 0, last_source = 0;
  for (uint32_t s = 0; s < times_.channel_count(); ++s) {
    if (!times_.Crosses(s, channel) || before[s] <= counts[s]) continue;
    ++sources;
    last_source = s;
  }
  if (sources == 1) {
    counts[last_source] += loads - loads_max;
    return true;
  }
  // The first block from which on there are few enough: everything that crosses before it is
  // recomputed.
  const auto loads_from = [&](const auto& count_before) {
    uint32_t count = 0;
    for (uint32_t s = 0; s < times_.channel_count(); ++s) {
      const uint32_t begin = std::max(counts[s], count_before(s));
      if (times_.Crosses(s, channel) && begin < before[s]) count += before[s] - begin;
    }
    return count;
  };
  uint32_t low = 0,
           high = layout_.row_count();  // rows: too many from low on, few enough from high on
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    const auto at = [&](uint32_t s) { return layout_.CountBeforeRow(middle, s); };
    (loads_from(at) > loads_max ? low : high) = middle;
  }
  uint32_t first = low * layout_.row_blocks(), last = high * layout_.row_blocks();
  while (last - first > 1) {
    const uint32_t middle = (first + last) / 2;
    const auto at = [&](uint32_t s) { return layout_.CountBefore(middle, s); };
    (loads_from(at) > loads_max ? first : last) = middle;
  }
  for (uint32_t s = 0; s < times_.channel_count(); ++s) {
    if (!times_.Crosses(s, channel)) continue;
    counts[s] = std::max(counts[s], std::min(before[s], layout_.CountBefore(last, s)));
  }
  return true;
}

void RestoreSearch::TryWholeSources(Kind kind, Found& best) const {
  for (uint32_t recomputed = 0; recomputed < 1u << times_.channel_count(); ++recomputed) {
    RecomputeCounts counts = times_.RecomputeNothing();
    for (uint32_t s = 0; s < times_.channel_count(); ++s) {
      if (recomputed >> s & 1) counts[s] = all_[s];
    }
    Try(kind, counts, best);
  }
}

void RestoreSearch::TryNeighbours(Kind kind, RecomputeCounts centre, Found& best,
                                  int64_t& effort) const {
  const uint32_t sources = times_.channel_count();
  const auto try_counts = [&](const RecomputeCounts& counts) {
    effort -= kBoundEffort;
    if (effort < 0) return false;
    if (kind == Kind::kFront && times_.FrontBound(counts) < best.seconds) {
      effort -= WalkEffort(counts);
    }
    if (!Try(kind, counts, best)) return false;
    centre = counts;
    return true;
  };
  const auto moved = [&](uint32_t source, int64_t by, RecomputeCounts& counts) {
    const int64_t count = static_cast<int64_t>(counts[source]) + by;
    if (count < 0 || count > layout_.count(source)) return false;
    counts[source] = static_cast<uint32_t>(count);
    return true;
  };
  for (bool improved = true; improved && effort > 0;) {
    improved = false;
    for (uint32_t s = 0; s < sources; ++s) {
      for (int64_t step = layout_.count(s) / kSteps + 1;;
           step = (step + kSteps / 4 - 1) / (kSteps / 4)) {
        const RecomputeCounts middle = centre;
        for (int64_t n = -kSteps; n <= kSteps; ++n) {
          RecomputeCounts counts = middle;
          if (moved(s, n * step, counts)) improved |= try_counts(counts);
        }
        if (step == 1) break;
      }
    }
    for (uint32_t s = 0; s < sources; ++s) {
      for (uint32_t other = 0; other < s; ++other) {
        const RecomputeCounts middle = centre;
        for (int64_t n = 0; n < (2 * kReach + 1) * (2 * kReach + 1); ++n) {
          RecomputeCounts counts = middle;
          if (moved(s, n % (2 * kReach + 1) - kReach, counts) &&
              moved(other, n / (2 * kReach + 1) - kReach, counts)) {
            improved |= try_counts(counts);
          }
        }
      }
    }
  }
}

}  // namespace cairn
