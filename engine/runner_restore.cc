// How contexts come back: what the strategy decided, as it is carried out.
#include <algorithm>
#include <functional>
#include <vector>

#include "engine/runner.h"

namespace cairn {

uint32_t Runner::DecodeRowCount() const {
  uint32_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    count += !sequence->paused && sequence->is_decoding();
  }
  return count;
}

RestoreView Runner::ViewOf(const Sequence& sequence, std::span<const Origin> blocks) const {
  const size_t old_count = blocks.size() * store_.layout().block_tokens;
  RestoreView view{.blocks = blocks,
                   .new_tokens = static_cast<uint32_t>(sequence.tokens.size() - old_count),
                   .decode_rows = DecodeRowCount(),
                   .priority = static_cast<uint32_t>(sequence.priority),
                   .is_ahead = sequence.sink == nullptr && sequence.id.valid()};
  if (sequence.blocks != nullptr && sequence.sink != nullptr) {
    view.loading[kHostChannel] = sequence.blocks->LoadingFrom(Tier::kHost);
    view.loading[kDiskChannel] = sequence.blocks->LoadingFrom(Tier::kDisk);
  }
  return view;
}

ContextBlocks::Planner Runner::PlannerFor(const Sequence& sequence) {
  return [this, &sequence](std::span<const Origin> blocks) {
    RestorePlan plan = restores_.Plan(ViewOf(sequence, blocks));
    if (sequence.sink == nullptr) plan.turn = kTurnAhead;
    return plan;
  };
}

void Runner::SettleRestoring() {
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->is_admitted()) continue;
    Settle(*sequence, [this](ContextBlocks& blocks) {
      return blocks.is_loading() ? blocks.Settle(clock_.Now()).status() : Status();
    });
  }
}

// After `change` those whose blocks have all been loaded run; what got lost is computed again.
void Runner::Settle(Sequence& sequence, const std::function<Status(ContextBlocks&)>& change) {
  const ContextBlocks::Found before = sequence.blocks->found();
  const bool was_loading = sequence.blocks->is_loading();
  const Status changed = change(*sequence.blocks);
  const bool is_loading = sequence.blocks->is_loading();
  if (trace_ != nullptr && was_loading && changed.ok() && !is_loading) {
    trace_->Span("load", sequence.admitted, clock_.Now(), "",
                 TraceWriter::LoadTrack(sequence.id.value()));
  }
  const ContextBlocks::Found after = sequence.blocks->found();
  if (sequence.is_first_restore && (was_loading || is_loading)) {
    Usage& usage = sequence.usage;
    usage.recomputed_tokens +=
        before.host_tokens - after.host_tokens + before.disk_tokens - after.disk_tokens;
    usage.host_tokens += after.host_tokens - before.host_tokens;
    usage.disk_tokens += after.disk_tokens - before.disk_tokens;
    usage.restore_time = clock_.Now() - sequence.admitted;
  }
  if (!changed.ok()) {
    Preempt(sequence);
  } else {
    sequence.phase = is_loading ? Phase::kRestoring : Phase::kRunning;
  }
}

// Contexts that come back are planned anew, all of them together, when one has joined or some time
// has gone by; those that are fetched ahead of need each by itself.
void Runner::ReviseRestores(Clock::Monotonic step_begin) {
  std::vector<Sequence*> waited_for;
  for (Sequence* sequence : RestoresToRevise(step_begin)) {
    if (sequence->sink != nullptr) {
      waited_for.push_back(sequence);
    } else {
      ReviseTogether({sequence}, step_begin);
    }
  }
  if (!waited_for.empty()) ReviseTogether(waited_for, step_begin);
}

std::vector<Sequence*> Runner::RestoresToRevise(Clock::Monotonic step_begin) {
  const auto interval = restores_.revision_interval();
  if (!interval) return {};
  std::vector<Sequence*> restores;
  bool has_joined = false;
  bool is_due = false;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->is_admitted() || sequence->restore == nullptr) continue;
    const ContextBlocks& blocks = *sequence->blocks;
    if (blocks.missing_count(sequence->tokens.size()) <= 1 && !blocks.is_loading()) continue;
    if (blocks.Arrival() != nullptr) continue;  // it cannot be had otherwise any sooner
    restores.push_back(sequence.get());
    has_joined |= sequence->admitted >= step_begin;
    is_due |= clock_.Now() - sequence->planned >= *interval;
  }
  if (!is_due && !(has_joined && restores.size() > 1)) restores.clear();
  return restores;
}

void Runner::ReviseTogether(const std::vector<Sequence*>& restores, Clock::Monotonic step_begin) {
  std::vector<std::vector<Origin>> origins;
  std::vector<RestoreView> views;
  origins.reserve(restores.size());  // views point to them
  for (Sequence* sequence : restores) {
    origins.push_back(sequence->blocks->Origins(sequence->tokens));
    views.push_back(ViewOf(*sequence, origins.back()));
  }
  std::vector<RestorePlan> plans = restores_.PlanTogether(views);
  for (size_t i = 0; i < restores.size(); ++i) {
    Sequence& sequence = *restores[i];
    if (sequence.sink == nullptr) plans[i].turn = kTurnAhead;
    if (sequence.admitted >= step_begin && !sequence.blocks->is_wave())
      ReportAgain(sequence, plans[i], origins[i]);
    const bool is_wave = plans[i].execution == Execution::kWave;
    if (!is_wave && sequence.blocks->is_loading()) NoteNoWave(sequence, plans[i].no_wave);
    sequence.planned = clock_.Now();
    Settle(sequence,
           [&](ContextBlocks& blocks) { return blocks.Follow(sequence.tokens, plans[i]); });
  }
}

bool Runner::IsRestoring() const {
  return std::ranges::any_of(sequences_, [](const auto& entry) {
    const Sequence& sequence = *entry.second;
    return sequence.is_admitted() && (sequence.blocks->is_loading() || sequence.restore_rows() > 0);
  });
}

void Runner::LearnFromPass(const std::vector<Work>& works, std::chrono::nanoseconds forward_time,
                           std::chrono::nanoseconds step_time) {
  // A pass that may have waited for copies says little of what passes cost.
  if (std::ranges::any_of(works, [](const Work& work) { return work.arrival != nullptr; })) {
    restore_log_.AddWaitingPass();
    return;
  }
  PassSample sample{.seconds = std::chrono::duration<double>(forward_time).count()};
  for (const BatchSegment& segment : segments_) {
    const auto count = static_cast<uint32_t>(segment.tokens.size());
    sample.rows += count;
    sample.position_sum += PositionSum(segment.first_position, count);
  }
  uint32_t decode_rows = 0;
  PassSample restored;
  for (const Work& work : works) {
    decode_rows += work.is_decode;
    restored.rows += work.restored.rows;
    restored.position_sum += work.restored.position_sum;
  }
  PassSample step = sample;
  step.seconds = std::chrono::duration<double>(step_time).count();
  restore_share_.Note(step, restored, decode_rows, restored.rows > 0 || IsRestoring());
  const std::optional<PassCosts> known = restores_.pass_costs();
  if (known && restored.rows > 0) {
    restore_log_.AddPass(known->Seconds(sample.rows, sample.position_sum), sample.seconds);
  }
  if (sample.seconds > 0) restores_.Learn(sample);
  const std::optional<PassCosts> costs = restores_.pass_costs();
  if (!costs) return;
  restore_share_.SetCosts(*costs);
  const uint32_t block_tokens = store_.layout().block_tokens;
  const uint32_t chunk_tokens = std::max(config_.prefill_chunk, block_tokens);
  store_.SetRecomputePrice(RecomputePriceOf(*costs, chunk_tokens, block_tokens));
}

}  // namespace cairn
