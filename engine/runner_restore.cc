// How contexts come back: what the strategy decided, as it is carried out.
#include <algorithm>

#include "engine/runner.h"

namespace cairn {

uint32_t Runner::DecodeRowCount() const {
  uint32_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    count += !sequence->paused && sequence->is_decoding();
  }
  return count;
}

ContextBlocks::Planner Runner::PlannerFor(const Sequence& sequence) {
  return [this, &sequence](std::span<const Origin> blocks) {
    const size_t old_count = blocks.size() * store_.layout().block_tokens;
    RestorePlan plan =
        restores_.Plan({.blocks = blocks,
                        .new_tokens = static_cast<uint32_t>(sequence.tokens.size() - old_count),
                        .decode_rows = DecodeRowCount()});
    if (sequence.sink == nullptr) plan.turn = kTurnAhead;
    return plan;
  };
}

void Runner::SettleRestoring() {
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->is_admitted()) Settle(*sequence);
  }
}

// Those whose blocks have all been loaded run from now on; what got lost is computed again.
void Runner::Settle(Sequence& sequence) {
  const ContextBlocks::Found before = sequence.blocks->found();
  const bool was_loading = sequence.blocks->is_loading();
  const Result<bool> loading = ReviseAndSettle(sequence);
  if (trace_ != nullptr && was_loading && loading.ok() && !*loading) {
    trace_->Span("load", sequence.admitted, clock_.Now(), "",
                 TraceWriter::LoadTrack(sequence.id.value()));
  }
  const ContextBlocks::Found after = sequence.blocks->found();
  if (sequence.is_first_restore && (was_loading || sequence.blocks->is_loading())) {
    Usage& usage = sequence.usage;
    usage.recomputed_tokens +=
        before.host_tokens - after.host_tokens + before.disk_tokens - after.disk_tokens;
    usage.host_tokens += after.host_tokens - before.host_tokens;
    usage.disk_tokens += after.disk_tokens - before.disk_tokens;
    usage.restore_time = clock_.Now() - sequence.admitted;
  }
  if (!loading.ok()) {
    Preempt(sequence);
  } else {
    sequence.phase = *loading ? Phase::kRestoring : Phase::kRunning;
  }
}

// Whether something is still on its way.
Result<bool> Runner::ReviseAndSettle(Sequence& sequence) {
  ContextBlocks& blocks = *sequence.blocks;
  if (blocks.is_loading()) RETURN_IF_ERROR(blocks.Settle().status());
  const auto interval = restores_.revision_interval();
  const bool is_restoring = blocks.missing_count(sequence.tokens.size()) > 1 || blocks.is_loading();
  if (interval && is_restoring && clock_.Now() - sequence.planned >= *interval) {
    sequence.planned = clock_.Now();
    RETURN_IF_ERROR(blocks.Revise(sequence.tokens, PlannerFor(sequence)));
  }
  return blocks.is_loading();
}

void Runner::LearnFromPass(const std::vector<Work>& works, std::chrono::nanoseconds forward_time) {
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
  restore_share_.Note(sample, restored, decode_rows);
  if (sample.seconds > 0) restores_.Learn(sample);
  const std::optional<PassCosts> costs = restores_.pass_costs();
  if (!costs) return;
  const uint32_t block_tokens = store_.layout().block_tokens;
  const uint32_t chunk_tokens = std::max(config_.prefill_chunk, block_tokens);
  store_.SetRecomputePrice(RecomputePriceOf(*costs, chunk_tokens, block_tokens));
}

}  // namespace cairn
