#include "offload/restore_planning.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "offload/restore_planner.h"
#include "offload/restore_search.h"

namespace cairn {

RestorePlanning::RestorePlanning(const RestoreProblem& problem, const RestoreLayout& layout)
    : problem_(problem), layout_(layout), times_(problem, layout) {
  load_all_ = {Execution::kLoadAll, times_.RecomputeNothing(), 0};
  load_all_.seconds = times_.FrontSeconds(load_all_.counts);
  recompute_all_ = {Execution::kRecomputeAll, times_.RecomputeEverything(), 0};
  recompute_all_.seconds = times_.FrontSeconds(recompute_all_.counts);
  const bool loads = load_all_.counts != recompute_all_.counts;
  if (!loads) load_all_.execution = Execution::kRecomputeAll;
  const bool computes = recompute_all_.counts != RecomputeCounts{};
  if (!computes) load_all_.execution = Execution::kNone;
}

RestorePlanning::Choice RestorePlanning::Choose(RestorePolicy policy) const {
  if (load_all_.execution == Execution::kNone) return load_all_;
  switch (policy) {
    case RestorePolicy::kCairn:
      return Best();
    case RestorePolicy::kLoadAll:
      return load_all_;
    case RestorePolicy::kRecomputeAll:
      return recompute_all_;
    case RestorePolicy::kGreedy:
      return Greedy();
    case RestorePolicy::kThreshold:
      return Threshold();
    case RestorePolicy::kCake:
      return Cake();
    case RestorePolicy::kCut:
      return Cut();
    case RestorePolicy::kWave:
      return Wave();
  }
  CHECK(false);
}

// Front goes by the name of a plan without a choice when it is one.
RestorePlanning::Choice RestorePlanning::AsFront(const RecomputeCounts& counts,
                                                 double seconds) const {
  if (counts == load_all_.counts) return load_all_;
  if (counts == recompute_all_.counts) return recompute_all_;
  return {Execution::kFront, counts, seconds};
}

RestorePlanning::Choice RestorePlanning::Best() const {
  Choice best = load_all_;
  if (recompute_all_.seconds < best.seconds) best = recompute_all_;
  const RestoreSearch search(problem_, layout_, times_);
  if (problem_.allows_wave) {
    const RestoreSearch::Found wave = search.BestWave(best.seconds);
    if (wave.seconds < best.seconds) best = {Execution::kWave, wave.counts, wave.seconds};
  }
  if (problem_.allows_front) {
    const RestoreSearch::Found front = search.BestFront(best.seconds);
    if (front.seconds < best.seconds) best = AsFront(front.counts, front.seconds);
  }
  const double gain = load_all_.seconds - best.seconds;
  return gain <= problem_.uncertainty * best.seconds ? load_all_ : best;
}

RestorePlanning::Choice RestorePlanning::Greedy() const {
  RecomputeCounts counts = load_all_.counts;
  for (uint32_t s = 0; s < times_.channel_count(); ++s) {
    double load = 0;
    for (uint32_t c = 0; c < times_.channel_count(); ++c) {
      if (times_.Crosses(s, c)) load = std::max(load, problem_.channels[c].block_s);
    }
    const auto blocks = layout_.blocks(s);
    const auto first_loaded =
        std::partition_point(blocks.begin(), blocks.end(),
                             [&](uint32_t block) { return times_.MarginalSeconds(block) < load; });
    counts[s] = static_cast<uint32_t>(first_loaded - blocks.begin());
  }
  const double wave = times_.WaveSeconds(counts);
  const Choice front = AsFront(counts, times_.FrontSeconds(counts));
  if (problem_.allows_wave && (wave < front.seconds || !problem_.allows_front)) {
    return {Execution::kWave, counts, wave};
  }
  return front;
}

RestorePlanning::Choice RestorePlanning::Threshold() const {
  uint32_t tokens = 0;
  for (const BlockSource source : problem_.blocks) {
    if (source == BlockSource::kAbsent || tokens >= kThresholdTokens) break;
    if (IsLoadable(source)) tokens += problem_.block_tokens;
  }
  return tokens >= kThresholdTokens ? load_all_ : recompute_all_;
}

RestorePlanning::Choice RestorePlanning::Cut() const {
  const auto cut = static_cast<uint32_t>(std::lround(problem_.cut_share * layout_.block_count()));
  RecomputeCounts counts = load_all_.counts;
  for (uint32_t s = 0; s < times_.channel_count(); ++s) counts[s] = layout_.CountBefore(cut, s);
  return AsFront(counts, times_.FrontSeconds(counts));
}

RestorePlanning::Choice RestorePlanning::Wave() const {
  if (!problem_.allows_wave) {
    Choice best = Best();
    best.no_wave = problem_.no_wave;
    return best;
  }
  const RestoreSearch search(problem_, layout_, times_);
  const RestoreSearch::Found wave = search.BestWave(times_.WaveSeconds(load_all_.counts));
  return {Execution::kWave, wave.counts, wave.seconds};
}

RestorePlanning::Choice RestorePlanning::Cake() const {
  // What is computed before a cut, and what has to be computed all in all.
  const auto before = [&](uint32_t cut) {
    RecomputeCounts counts{};
    for (uint32_t s = 0; s < layout_.source_count(); ++s) counts[s] = layout_.CountBefore(cut, s);
    return counts;
  };
  const auto at = [&](uint32_t cut) {
    RecomputeCounts counts = before(cut);
    counts[layout_.absent()] = layout_.count(layout_.absent());
    const double seconds = times_.FrontSeconds(counts, LoadOrder::kBackward);
    return Choice{Execution::kFront, counts, seconds, LoadOrder::kBackward};
  };
  uint32_t low = 0, high = layout_.block_count();  // the first cut where loads are not the last
  while (low < high) {
    const uint32_t cut = (low + high) / 2;
    const double computed =
        problem_.compute_backlog_s + times_.FrontComputeSeconds(times_.WorkOf(before(cut)));
    if (computed < times_.LoadedAt(before(cut))) {
      low = cut + 1;
    } else {
      high = cut;
    }
  }
  const Choice met = at(low);
  if (low == 0) return met;
  const Choice one_more_load = at(low - 1);
  return one_more_load.seconds < met.seconds ? one_more_load : met;
}

// The dual prices of the plan. Compute and each channel that is shared out (some of its blocks are
// loaded and some are not) are critical; at its cut, a second of the channel buys as much of
// compute as the block there takes, over its time on the channel. The prices of a second of all
// critical resources add up to one second. A channel that is not shared out has the plain time of a
// block, or, where fixed charges decide, so much of it that the price agrees with the plan.
RestorePrices RestorePlanning::PricesOf(const Choice& choice, RestorePrices prices) const {
  double bought_s = 1;
  for (uint32_t s = 0; s < times_.channel_count(); ++s) {
    const uint32_t cut = choice.counts[s];
    if (cut == 0 || cut == layout_.count(s)) continue;
    bought_s += times_.MarginalSeconds(layout_.blocks(s)[cut]) / problem_.channels[s].block_s;
  }
  prices.recompute_s = times_.MarginalSeconds(0) / bought_s;
  prices.recompute_s_per_block = (times_.MarginalSeconds(1) - times_.MarginalSeconds(0)) / bought_s;
  prices.reload_s.resize(times_.channel_count());
  for (uint32_t s = 0; s < times_.channel_count(); ++s) {
    const auto blocks = layout_.blocks(s);
    const uint32_t cut = choice.counts[s];
    double& price = prices.reload_s[s];
    price = problem_.channels[s].block_s;
    if (cut > 0) price = std::max(price, prices.RecomputeSeconds(blocks[cut - 1]));
    if (cut < blocks.size()) price = std::min(price, prices.RecomputeSeconds(blocks[cut]));
  }
  return prices;
}

void RestorePlanning::Write(const Choice& choice, RestorePlan& plan) const {
  plan.execution = choice.execution;
  plan.no_wave = choice.no_wave;
  plan.chunk_tokens = problem_.chunk_tokens;
  plan.predicted_s = choice.seconds;
  plan.uncertainty_s = problem_.uncertainty * choice.seconds;
  plan.load_all_s = load_all_.seconds;
  plan.recompute_all_s = recompute_all_.seconds;
  plan.prices = PricesOf(choice, std::move(plan.prices));

  const bool has_passes = choice.execution != Execution::kWave;
  plan.first_pass_end = has_passes ? times_.FirstPassEnd(choice.counts, choice.order) : 0;

  std::array<uint32_t, 256> first_loaded{};  // by source: blocks before it are recomputed
  first_loaded[static_cast<uint8_t>(BlockSource::kAbsent)] = UINT32_MAX;
  plan.load_order.resize(times_.channel_count());
  for (uint32_t s = 0; s < times_.channel_count(); ++s) {
    const auto loaded = layout_.blocks(s).subspan(choice.counts[s]);
    first_loaded[s] = loaded.empty() ? UINT32_MAX : loaded.front();
    plan.load_order[s].assign(loaded.begin(), loaded.end());
    if (choice.order == LoadOrder::kBackward) {
      std::reverse(plan.load_order[s].begin(), plan.load_order[s].end());
    }
  }
  plan.verdicts.resize(problem_.blocks.size());
  for (uint32_t i = 0; i < problem_.blocks.size(); ++i) {
    const BlockSource source = problem_.blocks[i];
    const bool computed = i < first_loaded[static_cast<uint8_t>(source)];
    plan.verdicts[i] = source == BlockSource::kDevice ? Verdict::kKeep
                       : computed                     ? Verdict::kRecompute
                                                      : Verdict::kReload;
  }
}

RestorePlanning::Use RestorePlanning::UseOf(const Choice& choice) const {
  Use use;
  if (choice.execution == Execution::kWave) {
    const RestoreTimes::WavePasses passes = times_.WavePassesOf(choice.counts);
    use.compute_s = passes.first_s + passes.others_s;
  } else {
    use.compute_s = times_.FrontComputeSeconds(times_.WorkOf(choice.counts)) + times_.NewSeconds();
  }
  for (uint32_t c = 0; c < times_.channel_count(); ++c) {
    use.channel_s[c] = times_.CrossingCount(choice.counts, c) * problem_.channels[c].block_s;
  }
  return use;
}

}  // namespace cairn
