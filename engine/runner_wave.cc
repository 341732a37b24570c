// Wave: one pass over all that a sequence has to compute, or as much as fits, while the blocks that
// lie between and before it arrive layer by layer. For what does not fit everything is there then.
//
// Such a pass begins as late as it can without being over any later: when what has not come yet
// takes no longer than what is computed before it. So it takes hardly longer than any pass of as
// many rows, whoever shares it or comes meanwhile.
#include <algorithm>

#include "engine/runner.h"

namespace cairn {
namespace {

// So long a pass may wait for what arrives: what is predicted is not so exact.
constexpr double kStallMax = 0.001;

using Reach = ContextBlocks::Reach;

}  // namespace

void Runner::SetReaches() {
  bool has_wave = false;  // a pass waits for one copy
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->is_admitted()) continue;
    ContextBlocks& blocks = *sequence->blocks;
    Reach reach = ReachOf(*sequence);
    if (reach == Reach::kBehindArrivals && std::exchange(has_wave, true)) reach = Reach::kNowhere;
    if (blocks.is_wave() && blocks.is_loading() && reach == Reach::kFront) {
      NoteNoWave(*sequence, NoWave::kStreams);
    }
    blocks.SetReach(reach);
  }
}

// What was planned as a wave is carried out as Front.
void Runner::NoteNoWave(Sequence& sequence, NoWave why) {
  if (sequence.restore == nullptr || sequence.restore->execution != Execution::kWave) return;
  sequence.restore->execution = Execution::kFront;
  sequence.restore->no_wave = why;
}

// Beside streams there is none.
ContextBlocks::Reach Runner::ReachOf(Sequence& sequence) const {
  const ContextBlocks& blocks = *sequence.blocks;
  const bool is_wave = blocks.is_wave() && blocks.is_loading();
  if (!is_wave || DecodeRowCount() > 0) return Reach::kFront;
  const CopyRef arrival = blocks.Arrival();
  if (arrival == nullptr) return Reach::kNowhere;
  return WaveStall(sequence, *arrival) <= kStallMax ? Reach::kBehindArrivals : Reach::kNowhere;
}

// How long the pass would wait, all in all, if it began now. What has come layer by layer up to now
// comes on at the same rate, and so does what is computed: the pass waits longest either for what
// comes next or for what comes last.
double Runner::WaveStall(Sequence& sequence, const QueuedCopy& arrival) const {
  const std::optional<PassCosts> costs = restores_.pass_costs();
  const LoadFlow flow = store_.host_flow();
  if (!costs || flow.block_s == 0) return 0;
  uint32_t rows = 0;
  double position_sum = 0;
  const auto runs = sequence.blocks->AllMissingRuns(sequence.tokens.size(), config_.prefill_chunk);
  for (const PositionRange& run : runs) {
    rows += run.count;
    position_sum += PositionSum(run.begin, run.count);
  }
  const double compute_s = costs->Seconds(std::max(rows, 1u), position_sum);
  const auto own = static_cast<double>(sequence.blocks->loading_count());
  const double load_s = flow.block_s * own;
  const double group = 1.0 / std::min<uint32_t>(CopyQueue::kLayerGroupsMax,
                                                static_cast<uint32_t>(arrival.layer_count()));
  const Clock::Monotonic now = clock_.Now();
  const double arrived = arrival.ArrivedShare();
  if (std::exchange(sequence.arrived, arrived) != arrived) sequence.arrived_since = now;
  const double ahead_s = arrived > 0 ? 0 : flow.block_s * std::max(0.0, flow.under_way - own);
  // Of the group that is on its way, what must have come.
  const std::chrono::duration<double> since = now - sequence.arrived_since;
  const double coming_s = ahead_s > 0 ? 0 : std::min(since.count(), load_s * group);
  const double next_s = ahead_s + load_s * group - coming_s - compute_s * arrived;
  const double last_s = ahead_s + load_s * (1 - arrived) - coming_s - compute_s * (1 - group);
  return arrived < 1 ? std::max({0.0, next_s, last_s}) : 0;
}

// The pass is over, and so is everything that it waited for. False when the sequence has lost its
// place.
bool Runner::EndArrival(Sequence& sequence) {
  store_.EndCopies();
  Settle(sequence, [this](ContextBlocks& blocks) { return blocks.Settle(clock_.Now()).status(); });
  return sequence.is_admitted();
}

}  // namespace cairn
