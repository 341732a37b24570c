#include "offload/restore_times.h"

#include <algorithm>

namespace cairn {

PassCosts CostsBesideStreams(const PassCosts& alone, uint32_t decode_rows, double share) {
  CHECK(share > 0 && share < 1);
  if (!(alone.token_s > 0)) return alone;
  // In the time of a pass of the streams, and what restores may add to it:
  const double streams_s = alone.FixedSeconds(decode_rows);
  const double added_s = streams_s * share / (1 - share);
  const double free_rows = std::max(0.0, alone.sweep_s / alone.token_s - decode_rows);
  const double rows = free_rows + added_s / alone.token_s;
  return {.token_s = (streams_s + added_s) / rows,
          .token_position_s = alone.token_position_s / share,
          .position_factors = alone.position_factors};
}

RestoreTimes::RestoreTimes(const RestoreProblem& problem, const RestoreLayout& layout)
    : problem_(problem), layout_(layout), early_(problem.pass, problem.chunk_tokens) {
  CHECK(problem.block_tokens > 0 && problem.chunk_tokens >= problem.block_tokens);
  CHECK(problem.layers > 0);
  // All tokens of a Wave share a pass, and those of an early one may.
  CHECK(!problem.new_pass || !(problem.allows_wave || problem.starts_early));
  CHECK(problem.channels.size() == channel_count());
  pass_blocks_ = problem.chunk_tokens / problem.block_tokens;
  full_pass_s_ = problem.pass.FixedSeconds(uint64_t{pass_blocks_} * problem.block_tokens);
  const double first = static_cast<double>(layout.block_count()) * problem.block_tokens;
  const double count = problem.new_tokens;
  const PassCosts& new_pass = problem.new_pass ? *problem.new_pass : problem.pass;
  new_position_sum_ = count * first + count * (count - 1) / 2;
  new_position_s_ = new_pass.PositionSeconds(problem.new_tokens, new_position_sum_);
  new_s_ = new_pass.FixedSeconds(problem.new_tokens) + new_position_s_;
  for (uint32_t source = 0; source < channel_count(); ++source) {
    uint32_t hops = 0;
    for (std::optional<uint32_t> c = source; c.has_value(); c = problem.channels[*c].then) {
      CHECK(*c < channel_count() && hops++ < channel_count());  // no way comes back to itself
      crossing_[*c] |= 1u << source;
    }
    CHECK(problem.channels[source].block_s > 0);
  }
}

RecomputeCounts RestoreTimes::RecomputeNothing() const {
  RecomputeCounts counts{};
  counts[layout_.absent()] = layout_.count(layout_.absent());
  return counts;
}

RecomputeCounts RestoreTimes::RecomputeEverything() const {
  RecomputeCounts counts{};
  for (uint32_t s = 0; s < layout_.source_count(); ++s) counts[s] = layout_.count(s);
  return counts;
}

RestoreTimes::Work RestoreTimes::WorkOf(const RecomputeCounts& counts) const {
  Work work;
  for (uint32_t s = 0; s < layout_.source_count(); ++s) {
    work.block_count += counts[s];
    work.index_sum += layout_.IndexSum(s, counts[s]);
  }
  return work;
}

RestoreTimes::Work RestoreTimes::WorkFromRow(const RecomputeCounts& counts, uint32_t row) const {
  Work work;
  for (uint32_t s = 0; s < layout_.source_count(); ++s) {
    const uint32_t before = layout_.CountBeforeRow(row, s);
    if (counts[s] <= before) continue;
    work.block_count += counts[s] - before;
    work.index_sum += layout_.IndexSum(s, counts[s]) - layout_.IndexSum(s, before);
  }
  return work;
}

double RestoreTimes::PositionSum(const Work& work) const {
  const double p = problem_.block_tokens;
  return p * p * work.index_sum + work.block_count * (p * (p - 1) / 2);
}

double RestoreTimes::PositionSeconds(const Work& work) const {
  const uint64_t rows = uint64_t{std::min(work.block_count, pass_blocks_)} * problem_.block_tokens;
  return problem_.pass.PositionSeconds(rows, PositionSum(work));
}

double RestoreTimes::FrontComputeSeconds(const Work& work) const {
  const uint32_t full_passes = work.block_count / pass_blocks_;
  const uint32_t rest = work.block_count % pass_blocks_;
  return full_passes * full_pass_s_ +
         problem_.pass.FixedSeconds(uint64_t{rest} * problem_.block_tokens) + PositionSeconds(work);
}

RestoreTimes::WavePasses RestoreTimes::WavePassesOf(const RecomputeCounts& counts) const {
  const Work work = WorkOf(counts);
  const uint64_t tokens = uint64_t{work.block_count} * problem_.block_tokens + problem_.new_tokens;
  const uint64_t most = problem_.wave_tokens_max;
  const double position_s = PositionSeconds(work) + new_position_s_;
  if (tokens <= most) return {problem_.pass.FixedSeconds(tokens) + position_s, 0};
  const double first_position_s =
      problem_.pass.PositionSeconds(most, PositionSumOfFirst(counts, most));
  const double full_s = problem_.pass.FixedSeconds(most);
  const uint64_t full_passes = tokens / most - 1;
  const double others_s =
      static_cast<double>(full_passes) * full_s + problem_.pass.FixedSeconds(tokens % most);
  return {full_s + first_position_s, others_s + std::max(0.0, position_s - first_position_s)};
}

// The index behind the first `block_count` blocks that are recomputed, of which there are as many.
uint32_t RestoreTimes::EndOfFirst(const RecomputeCounts& counts, uint32_t block_count) const {
  uint32_t low = 0, high = layout_.block_count();  // too few before low, enough before high
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    uint32_t found = 0;
    for (uint32_t s = 0; s < layout_.source_count(); ++s) {
      found += std::min(counts[s], layout_.CountBefore(middle, s));
    }
    if (found < block_count) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Of so many tokens that are computed, the first ones.
double RestoreTimes::PositionSumOfFirst(const RecomputeCounts& counts, uint64_t token_count) const {
  const uint32_t p = problem_.block_tokens;
  const Work work = WorkOf(counts);
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(token_count / p, work.block_count));
  const uint32_t end = EndOfFirst(counts, blocks);
  Work first{.block_count = blocks};
  for (uint32_t s = 0; s < layout_.source_count(); ++s) {
    first.index_sum += layout_.IndexSum(s, std::min(counts[s], layout_.CountBefore(end, s)));
  }
  // What is left of a pass: the beginning of the next block, or of the new tokens.
  const auto rest = static_cast<double>(token_count - uint64_t{blocks} * p);
  const bool is_block = blocks < work.block_count;
  const uint32_t next = !is_block  ? layout_.block_count()
                        : rest > 0 ? EndOfFirst(counts, blocks + 1) - 1
                                   : 0;
  return PositionSum(first) + rest * (double(next) * p) + rest * (rest - 1) / 2;
}

uint32_t RestoreTimes::CrossingCount(const RecomputeCounts& counts, uint32_t channel) const {
  uint32_t crossing = 0;
  for (uint32_t s = 0; s < channel_count(); ++s) {
    if (Crosses(s, channel)) crossing += layout_.count(s) - counts[s];
  }
  return crossing;
}

double RestoreTimes::LoadedAt(const RecomputeCounts& counts) const {
  double at = 0;
  for (uint32_t c = 0; c < channel_count(); ++c) {
    const uint32_t crossing = CrossingCount(counts, c);
    if (crossing == 0) continue;
    at = std::max(at, problem_.channels[c].backlog_s + LoadSeconds(c, crossing));
  }
  return at;
}

double RestoreTimes::WaveSeconds(const RecomputeCounts& counts) const {
  const WavePasses passes = WavePassesOf(counts);
  const double share = 1.0 / problem_.layers;
  double first = 0, last = 0;  // when the loads of the first and the last layer are there
  for (uint32_t c = 0; c < channel_count(); ++c) {
    const uint32_t crossing = CrossingCount(counts, c);
    if (crossing == 0) continue;
    const double load = LoadSeconds(c, crossing);
    const RestoreChannel& channel = problem_.channels[c];
    first = std::max(first, channel.backlog_s + load * (channel.comes_whole ? 1 : share));
    last = std::max(last, channel.backlog_s + load);
  }
  if (passes.first_s == 0 && WorkOf(counts).block_count + problem_.new_tokens == 0) return last;
  // What a layer waits for is a maximum of lines over the layers, so the first or the last one is
  // the latest of all, counted with the compute that comes after it.
  return passes.others_s + std::max(std::max(first, problem_.compute_backlog_s) + passes.first_s,
                                    last + passes.first_s * share);
}

double RestoreTimes::FinishFront(double passes_end, bool has_passes, double loaded_at) const {
  if (!has_passes && problem_.new_tokens == 0) return loaded_at;
  return std::max(passes_end, loaded_at) + new_s_;
}

double RestoreTimes::FrontBound(const RecomputeCounts& counts) const {
  const Work work = WorkOf(counts);
  const double loaded_at = LoadedAt(counts);
  const double passes_end = problem_.compute_backlog_s + FrontComputeSeconds(work);
  if (!problem_.starts_early || work.block_count == 0) {
    return FinishFront(passes_end, work.block_count > 0, loaded_at);
  }
  // As few passes as there may be, each at the best rate.
  const uint64_t rows = uint64_t{work.block_count} * problem_.block_tokens + problem_.new_tokens;
  const uint32_t passes =
      rows <= problem_.chunk_tokens ? 1 : (work.block_count - 1) / pass_blocks_ + 1;
  const double computed_s =
      problem_.pass.LeastSeconds(rows, passes, PositionSum(work) + new_position_sum_);
  return std::max(problem_.compute_backlog_s + computed_s, loaded_at + new_s_);
}

void RestoreTimes::CutEarlyPasses(const RecomputeCounts& counts, LoadOrder order) const {
  const uint32_t total = WorkOf(counts).block_count;
  std::array<uint32_t, kRestoreChannelsMax> needed{};  // of each channel, by the walk so far
  RecomputeCounts seen{};
  double ready_s = 0;
  early_.Clear(problem_.compute_backlog_s);
  for (uint32_t i = 0; early_.count() < total; ++i) {
    const std::optional<uint32_t> source = layout_.SourceOf(i);
    if (!source) continue;
    const uint32_t s = *source;
    if (seen[s]++ < counts[s]) {
      early_.Add(problem_.block_tokens, PositionSum({1, double(i)}), ready_s);
      continue;
    }
    // The earliest block is loaded first; or last, after all others of its source.
    const bool is_first = seen[s] == counts[s] + 1;
    if (order == LoadOrder::kBackward && !is_first) continue;
    const uint32_t loads = order == LoadOrder::kForward ? 1 : layout_.count(s) - counts[s];
    for (uint32_t c = 0; c < channel_count(); ++c) {
      if (!Crosses(s, c)) continue;
      needed[c] += loads;
      ready_s = std::max(ready_s, problem_.channels[c].backlog_s + LoadSeconds(c, needed[c]));
    }
  }
  if (problem_.new_tokens > 0) {
    early_.Add(problem_.new_tokens, new_position_sum_, LoadedAt(counts));
  }
}

uint32_t RestoreTimes::FirstPassEnd(const RecomputeCounts& counts, LoadOrder order) const {
  if (!problem_.starts_early) return 0;
  CutEarlyPasses(counts, order);
  const size_t piece_count = early_.FirstPassCount();
  if (piece_count > WorkOf(counts).block_count) return layout_.block_count();
  RecomputeCounts seen{};
  uint32_t end = 0;
  for (size_t left = piece_count; left > 0; ++end) {
    const std::optional<uint32_t> s = layout_.SourceOf(end);
    if (s && seen[*s]++ < counts[*s]) --left;
  }
  return end;
}

double RestoreTimes::FrontSeconds(const RecomputeCounts& counts, LoadOrder order) const {
  const double loaded_at = LoadedAt(counts);
  if (problem_.starts_early) {
    CutEarlyPasses(counts, order);
    return early_.count() == 0 ? loaded_at : std::max(early_.end_s(), loaded_at);
  }
  if (loaded_at <= problem_.compute_backlog_s) return FrontBound(counts);  // no pass waits
  double clock = problem_.compute_backlog_s;
  bool has_passes = false;
  RecomputeCounts needed;
  VisitPasses(counts, [&](const RecomputeCounts& before, const Work& work) {
    const RecomputeCounts* loaded = &before;
    if (order == LoadOrder::kBackward) {  // the earliest block that is needed comes last
      needed = before;
      for (uint32_t s = 0; s < channel_count(); ++s) {
        if (before[s] > counts[s]) needed[s] = layout_.count(s);
      }
      loaded = &needed;
    }
    for (uint32_t c = 0; c < channel_count(); ++c) {
      const uint32_t count = NeededCount(counts, *loaded, c);
      if (count == 0) continue;
      clock = std::max(clock, problem_.channels[c].backlog_s + LoadSeconds(c, count));
    }
    clock += FrontComputeSeconds(work);
    return has_passes = true;
  });
  return FinishFront(clock, has_passes, loaded_at);
}

}  // namespace cairn
