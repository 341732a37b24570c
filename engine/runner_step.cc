// The step: plan -> forward -> sample -> commit.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/runner.h"

namespace cairn {
namespace {

// In a row; then the device is as good as lost, whatever it says itself.
constexpr uint32_t kFailedPassesMax = 3;

}  // namespace

bool Runner::Step() {
  if (!lost_.ok()) return EndEverything();
  const Clock::Monotonic begin = clock_.Now();
  store_.Poll();
  if (FindLoss()) return true;
  store_.WriteBack();
  const bool replayed = ReplaySome();
  ReleaseLongPaused();
  SettleRestoring();
  Admit();
  ReviseRestores(begin);
  store_.OrderLoads();
  SetReaches();
  EndRound();
  NoteStates();
  const std::vector<Work> works = PlanWork();
  if (works.empty()) return replayed;
  const Clock::Monotonic planned = clock_.Now();
  const Result<std::span<const RowLogits>> logits = Compute(works);
  if (!logits.ok()) {
    FailPass(works, logits.status());
    EndRound();
    return true;
  }
  failed_passes_ = 0;
  const Clock::Monotonic computed = clock_.Now();
  if (trace_ != nullptr) TraceRestoredRows(works, planned, computed);
  Commit(works, *logits);
  const Clock::Monotonic committed = clock_.Now();
  EndRound();
  const Clock::Monotonic delivered = clock_.Now();

  ++counts_.steps;
  counts_.step_time += delivered - begin;
  counts_.forward_time += computed - planned;
  LearnFromPass(works, computed - planned, delivered - begin);
  if (trace_ != nullptr) {
    trace_->Span("step", begin, delivered,
                 "\"rows\":" + std::to_string(RowCount()) +
                     ",\"sequences\":" + std::to_string(works.size()));
    trace_->Span("plan", begin, planned);
    trace_->Span("forward", planned, computed);
    trace_->Span("sample and commit", computed, committed);
    trace_->Span("deliver", committed, delivered);
  }
  return true;
}

// What the pass was to write is not to be used, and what was written before it is as it was.
void Runner::FailPass(const std::vector<Work>& works, const Status& why) {
  if (FindLoss()) return;
  if (++failed_passes_ == kFailedPassesMax) {
    lost_ = Unavailable("the device is given up after " + std::to_string(failed_passes_) +
                        " passes in a row that failed: " + why.message());
    return;
  }
  const Status status(Code::kInternal, "the device could not compute a step: " + why.message());
  for (const Work& work : works) Cancel(SequenceId(work.sequence->id), status);
}

bool Runner::FindLoss() {
  const Status lost = model_.device().lost();
  if (lost.ok()) return false;
  lost_ = Unavailable("the device is lost: " + lost.message());
  return true;
}

bool Runner::EndEverything() {
  CancelAll(lost_);
  store_.EndDepartures();
  EndRound();
  return false;
}

std::vector<Runner::Work> Runner::PlanWork() {
  std::vector<SequenceView> runnable;
  std::vector<Sequence*> restored;  // prefetches that have nothing left to do
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->is_admitted() || RestsSince(*sequence)) continue;
    const uint32_t rows_left = sequence->rows_left();
    if (rows_left == 0) {
      if (sequence->phase == Phase::kRunning) restored.push_back(sequence.get());
    } else {
      runnable.push_back({.id = id,
                          .rows_left = rows_left,
                          .priority = sequence->priority,
                          .restore_rows = sequence->restore_rows(),
                          .turn = sequence->blocks->turn()});
    }
  }
  for (Sequence* sequence : restored) {
    FinishRestore(*sequence);
    End(*sequence, {.finish_reason = FinishReason::kLength});
  }
  // A context that comes back alone may do better to wait for more of it than to begin.
  if (runnable.size() == 1 && Find(runnable[0].id)->blocks->awaits_pass()) runnable.clear();
  std::vector<Work> works;
  for (const StepShare& share : PlanStep(runnable, BudgetFor(runnable))) {
    Work work = WorkFor(*Find(share.id), share.row_count);
    if (!work.runs.empty() || work.samples) works.push_back(std::move(work));
  }
  return works;
}

StepBudget Runner::BudgetFor(std::span<const SequenceView> runnable) {
  uint32_t position = 0;  // of the rows that come back, the one that is furthest on
  for (const SequenceView& view : runnable) {
    if (view.restore_rows < 2) continue;
    const Sequence& sequence = *Find(view.id);
    position = std::max(position, sequence.blocks->MissingRuns(sequence.tokens.size(), 1)[0].begin);
  }
  return {
      .prefill_rows = config_.prefill_chunk,
      .restore_rows = restore_share_.RowsMax(DecodeRowCount(), position, config_.prefill_chunk)};
}

Runner::Work Runner::WorkFor(Sequence& sequence, uint32_t row_count) {
  Work work{.sequence = &sequence, .is_decode = sequence.is_decoding()};
  const size_t count = sequence.tokens.size();
  if (sequence.blocks->reaches_behind_arrivals()) {
    if (row_count == std::min(sequence.rows_left(), config_.prefill_chunk)) {
      work.arrival = sequence.blocks->Arrival();
    } else {  // others go first, and who waits for layers has a whole pass or none
      sequence.blocks->SetReach(ContextBlocks::Reach::kFront);
      NoteNoWave(sequence, NoWave::kShared);
      row_count = std::min(row_count, sequence.rows_left());
    }
  }
  work.runs = sequence.blocks->MissingRuns(count, row_count);
  if (!work.is_decode && sequence.restored_end > 0) {
    for (const PositionRange& run : work.runs) {
      work.restored.rows += run.count;
      work.restored.position_sum += PositionSum(run.begin, run.count);
    }
  }
  const bool waits = sequence.blocks->is_loading() && work.arrival == nullptr;
  work.samples =
      sequence.sink != nullptr && !waits && sequence.blocks->missing_count(count) <= row_count;
  return work;
}

// One pass over the rows of all works. The logits are of the works that sample, in their order.
Result<std::span<const RowLogits>> Runner::Compute(const std::vector<Work>& works) {
  segments_.clear();
  LayerArrivals arrivals;
  for (const Work& work : works) {
    const Sequence& sequence = *work.sequence;
    const uint32_t highest_count =
        HighestNeeded(sequence.sampling, model_.config().vocabulary_size);
    const std::span<const uint32_t> tokens = sequence.tokens;
    if (work.arrival != nullptr) {
      arrivals = [&](uint32_t layer) { return store_.AwaitLayer(*work.arrival, layer); };
    }
    bool last_is_a_row = false;
    for (const PositionRange& run : work.runs) {
      last_is_a_row = run.begin + run.count == tokens.size();
      segments_.push_back({.tokens = tokens.subspan(run.begin, run.count),
                           .first_position = run.begin,
                           .blocks = sequence.blocks->addresses(),
                           .want_logits = work.samples && last_is_a_row,
                           .highest_count = highest_count});
    }
    if (work.samples && !last_is_a_row) {  // its K and V are in place; only the logits are wanted
      segments_.push_back({.tokens = tokens.last(1),
                           .first_position = static_cast<uint32_t>(tokens.size() - 1),
                           .blocks = sequence.blocks->addresses(),
                           .write_kv = false,
                           .want_logits = true,
                           .highest_count = highest_count});
    }
  }
  return model_.Forward(segments_, arrivals);
}

void Runner::Commit(const std::vector<Work>& works, std::span<const RowLogits> logits) {
  std::vector<SequenceId> sampled;
  for (const Work& work : works) {
    const bool is_whole = MarkWritten(work);
    if (!work.samples) continue;
    const RowLogits& own_logits = logits.front();
    logits = logits.subspan(1);
    if (!is_whole) continue;
    sampled.push_back(work.sequence->id);
    CommitToken(*work.sequence, own_logits);
  }
  // Only now may blocks change hands: before, a step's rows still lay in them.
  for (const SequenceId id : sampled) {
    if (Sequence* sequence = Find(id); sequence != nullptr && sequence->blocks != nullptr) {
      MakeRoom(*sequence);
    }
  }
}

// False when a block that was to arrive meanwhile got lost: what was computed before it stays, and
// nothing that was behind it.
bool Runner::MarkWritten(const Work& work) {
  Sequence& sequence = *work.sequence;
  const Clock::Monotonic now = clock_.Now();
  if (work.arrival != nullptr && !EndArrival(sequence)) return false;
  for (const PositionRange& run : work.runs) {
    const bool is_behind_lost = sequence.blocks->MissingRuns(run.begin + 1, 1)[0].begin < run.begin;
    if (is_behind_lost) return false;
    sequence.blocks->Written(run, sequence.tokens, now);
    const size_t end = size_t{run.begin} + run.count;
    const size_t old_end = std::clamp<size_t>(sequence.restored_end, run.begin, end);
    counts_.recomputed_tokens += static_cast<int64_t>(old_end - run.begin);
    sequence.computed_end = std::max(sequence.computed_end, end);
  }
  if (work.samples && sequence.blocks->missing_count(sequence.tokens.size()) > 0) return false;
  if (work.samples) FinishRestore(sequence);
  if (work.samples && sequence.is_first_restore && sequence.usage.recomputed_tokens > 0 &&
      !sequence.first_token) {
    sequence.usage.restore_time = clock_.Now() - sequence.admitted;
  }
  return true;
}

size_t Runner::RowCount() const {
  size_t row_count = 0;
  for (const BatchSegment& segment : segments_) row_count += segment.tokens.size();
  return row_count;
}

bool Runner::EndsStream(const Sequence& sequence, uint32_t token) const {
  const std::vector<uint32_t>& stops = sequence.sampling.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
  return !sequence.sampling.ignore_eos && tokenizer_.IsEnd(token);
}

void Runner::CommitToken(Sequence& sequence, const RowLogits& logits) {
  const size_t position = sequence.tokens.size();
  const Result<SampledToken> sampled =
      sampler_.Sample(logits, sequence.sampling, sequence.seed, position,
                      sequence.counts ? &*sequence.counts : nullptr);
  if (!sampled.ok()) {
    End(sequence, {.status = sampled.status()});
    return;
  }
  sequence.MarkToken(clock_.Now());
  if (EndsStream(sequence, sampled->id)) {
    if (!Release(sequence, sequence.output->Finish())) return;
    End(sequence, {.finish_reason = FinishReason::kStop, .stop_token_id = sampled->id});
    return;
  }
  sequence.tokens.push_back(sampled->id);
  if (sequence.counts) sequence.counts->Add(sampled->id);
  Released output = sequence.output->Push(sampled->id, sampled->logprob);
  std::optional<std::string> stop_string = output.stop_string;
  if (!Release(sequence, std::move(output))) return;
  if (stop_string) {
    End(sequence, {.finish_reason = FinishReason::kStop, .stop_string = std::move(stop_string)});
  } else if (sequence.tokens.size() >= sequence.end_count) {
    if (!Release(sequence, sequence.output->Finish())) return;
    End(sequence, {.finish_reason = FinishReason::kLength});
  }
}

// What the output lets go becomes part of the session, and goes to the sink. False when the session
// could not take it: the sequence has then ended.
bool Runner::Release(Sequence& sequence, Released released) {
  if (released.token_ids.empty() && released.text.empty()) return true;
  const Status added = AddToSession(sequence, released.token_ids.size());
  if (!added.ok()) {  // the tokens of all sessions have reached their bound, or it has expired
    End(sequence, {.status = added});
    return false;
  }
  const int64_t position = static_cast<int64_t>(sequence.released_count);
  sequence.released_count += released.token_ids.size();
  sequence.usage.completion_tokens += static_cast<int64_t>(released.token_ids.size());
  deliveries_.push_back({sequence.id, sequence.session_id, sequence.sink,
                         StreamUpdate{.position = position,
                                      .token_ids = std::move(released.token_ids),
                                      .text = std::move(released.text),
                                      .logprobs = std::move(released.logprobs)},
                         std::nullopt});
  return true;
}

// The session gets the next `released_count` tokens, and before the first of them the content, as
// one change: a stream that fails before it has said anything leaves the session as it was.
Status Runner::AddToSession(Sequence& sequence, size_t released_count) {
  const size_t count = sequence.content_count + released_count;
  if (sequence.session_id.empty() || count == 0) return Status();
  const size_t begin = sequence.released_count - sequence.content_count;
  const auto added = std::span(sequence.tokens).subspan(begin, count);
  RETURN_IF_ERROR(sessions_.Append(sequence.session_id, added, std::nullopt).status());
  sequence.content_count = 0;
  return Status();
}

// A block for the token that was just sampled, if it begins one.
void Runner::MakeRoom(Sequence& sequence) {
  const uint32_t position = static_cast<uint32_t>(sequence.tokens.size() - 1);
  while (!sequence.blocks->Extend(position).ok()) {
    std::vector<SequenceView> holders;
    for (const auto& [id, other] : sequences_) {
      if (other->is_admitted()) holders.push_back({id, 1, other->priority});
    }
    if (holders.size() == 1 && !pins_.empty()) {
      pins_.erase(pins_.begin());
      continue;
    }
    const SequenceId loser = PickPreempted(holders, {sequence.id, 1, sequence.priority});
    Preempt(*Find(loser));
    if (loser == sequence.id) return;
  }
}

}  // namespace cairn
