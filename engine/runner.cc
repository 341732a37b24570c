// Who runs: admission, replay, preemption, the end of a sequence. runner_step.cc has the step.
#include "engine/runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {
namespace {

constexpr size_t kReplayChunk = 1024;     // tokens handed out in one step
constexpr uint32_t kPassedOverMax = 16;   // then nobody is admitted before it any more
constexpr uint32_t kBlockedTriesMax = 4;  // sequences that are tried in vain in one step

}  // namespace

Runner::Runner(Model& model, BlockStore& store, RestoreStrategy& restores, SessionTable& sessions,
               const Tokenizer& tokenizer, const EngineConfig& config, const Clock& clock,
               TraceWriter* trace, SessionJournal* journal)
    : model_(model),
      store_(store),
      restores_(restores),
      sessions_(sessions),
      tokenizer_(tokenizer),
      config_(config),
      clock_(clock),
      trace_(trace),
      journal_(journal),
      restore_share_(config.restore_share / 100.0, store.layout().block_tokens) {
  if (const auto costs = restores.pass_costs()) restore_share_.SetCosts(*costs);
}

void Runner::Start(std::unique_ptr<Sequence> sequence) {
  CHECK(!sequence->is_admitted() && !sequence->tokens.empty());
  if (!sequence->session_id.empty()) {
    const bool fresh = by_session_.emplace(sequence->session_id, sequence->id).second;
    CHECK(fresh);
  }
  const SequenceId id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
}

Sequence* Runner::Find(SequenceId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

const Sequence* Runner::FindBySession(const std::string& session_id) const {
  const auto found = by_session_.find(session_id);
  return found == by_session_.end() ? nullptr : sequences_.at(found->second).get();
}

size_t Runner::running_count() const {
  size_t count = 0;
  for (const auto& [id, sequence] : sequences_) count += sequence->is_admitted();
  return count;
}

bool Runner::HasWork() const {
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->paused) return true;
  }
  return false;
}

void Runner::Cancel(SequenceId id, const Status& why) {
  CHECK(!why.ok());
  if (Sequence* sequence = Find(id)) {
    End(*sequence, {.status = why});
    Deliver();
  }
}

void Runner::CancelAll(const Status& why) {
  while (!sequences_.empty()) Cancel(sequences_.begin()->first, why);
}

void Runner::Pause(SequenceId id) {
  if (Sequence* sequence = Find(id)) {
    sequence->paused = true;
    sequence->paused_since = clock_.Now();
  }
}

// When it takes part in nothing: because its sink is full, or because its tokens could not be made
// durable.
std::optional<Clock::Monotonic> Runner::RestsSince(const Sequence& sequence) const {
  if (sequence.paused) return sequence.paused_since;
  if (journal_ == nullptr || sequence.session_id.empty() || sequence.sink == nullptr) return {};
  return journal_->behind_since();
}

void Runner::Resume(SequenceId id) {
  if (Sequence* sequence = Find(id)) sequence->paused = false;
}

void Runner::NoteStates() {
  const std::lock_guard lock(states_mutex_);
  states_.resize(sequences_.size());  // what was there keeps its memory
  auto state = states_.begin();
  for (const auto& [id, sequence] : sequences_) {
    state->id = id;
    state->session_id = sequence->session_id;
    state->phase = sequence->phase;
    state->paused = sequence->paused;
    state->token_count = sequence->tokens.size();
    state->rows_left = sequence->phase == Phase::kRunning ? sequence->rows_left() : 0;
    ++state;
  }
}

std::vector<SequenceState> Runner::StatesAtStep() const {
  const std::lock_guard lock(states_mutex_);
  return states_;
}

// Hands out a piece of what the session has already. True when somebody got something.
bool Runner::ReplaySome() {
  std::vector<Sequence*> replaying;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->phase == Phase::kReplaying && !RestsSince(*sequence)) {
      replaying.push_back(sequence.get());
    }
  }
  for (Sequence* sequence : replaying) Replay(*sequence);
  return !replaying.empty();
}

void Runner::Replay(Sequence& sequence) {
  if (const Status added = AddToSession(sequence, 0); !added.ok()) {
    return End(sequence, {.status = added});
  }
  const size_t count = std::min(kReplayChunk, sequence.replay_end - sequence.replay_next);
  StreamUpdate update{.position = static_cast<int64_t>(sequence.replay_next)};
  for (size_t i = 0; i < count; ++i) {
    const uint32_t token = sequence.tokens[sequence.replay_next++];
    update.token_ids.push_back(token);
    update.text += sequence.replay_text->Push(token);
  }
  sequence.usage.completion_tokens += static_cast<int64_t>(count);
  sequence.MarkToken(clock_.Now());
  const bool done = sequence.replay_next == sequence.replay_end;
  const bool at_length = sequence.tokens.size() >= sequence.end_count;
  if (done && at_length) update.text += sequence.replay_text->Flush();
  if (count > 0)
    deliveries_.push_back({sequence.id, sequence.session_id, sequence.sink, std::move(update), {}});
  if (!done) return;
  if (at_length) {
    End(sequence, {.finish_reason = FinishReason::kLength});
  } else {
    sequence.phase = Phase::kWaiting;
  }
}

void Runner::ReleaseLongPaused() {
  for (const auto& [id, sequence] : sequences_) {
    const auto since = RestsSince(*sequence);
    if (since && sequence->is_admitted() && clock_.Now() - *since > config_.paused_max) {
      Preempt(*sequence);
    }
  }
}

std::vector<Sequence*> Runner::WaitingInOrder() {
  std::vector<Sequence*> waiting;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->phase == Phase::kWaiting && !RestsSince(*sequence)) {
      waiting.push_back(sequence.get());
    }
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const Sequence* a, const Sequence* b) { return a->priority > b->priority; });
  return waiting;
}

// Higher priority first, then who came first. Who does not fit may be passed over by smaller ones,
// but only so often.
void Runner::Admit() {
  size_t running = running_count();
  std::vector<Sequence*> blocked;
  for (Sequence* sequence : WaitingInOrder()) {
    if (running >= config_.concurrent_max) return;
    if (TryAdmit(*sequence)) {
      running = running_count();  // somebody may have been preempted, or this one refused
      for (Sequence* passed_over : blocked) ++passed_over->passed_over_count;
      continue;
    }
    if (sequence->passed_over_count >= kPassedOverMax) return;
    blocked.push_back(sequence);
    if (blocked.size() >= kBlockedTriesMax) return;
  }
}

// True when the sequence has left kWaiting, be it because it can never fit.
bool Runner::TryAdmit(Sequence& sequence) {
  const uint32_t need =
      ContextBlocks::BlocksFor(sequence.tokens.size(), store_.layout().block_tokens);
  const uint32_t capacity = store_.stats().capacity;
  if (need > capacity) {
    End(sequence,
        {.status = ResourceExhausted(
             "a context of " + std::to_string(sequence.tokens.size()) + " tokens takes " +
             std::to_string(need) + " blocks; there is room for " + std::to_string(capacity) +
             (store_.uses_host_in_place() ? " (--device-memory, --host-memory)"
                                          : " (--device-memory)"))});
    return true;
  }
  const Clock::Monotonic now = clock_.Now();
  while (true) {
    auto blocks = ContextBlocks::Acquire(store_, sequence.root, sequence.tokens,
                                         static_cast<uint32_t>(sequence.priority),
                                         model_.compute_stream(), FirstPlannerFor(sequence),
                                         now - sequence.awaits_room_since.value_or(now));
    if (blocks.ok()) {
      sequence.blocks = *std::move(blocks);
      OnAdmitted(sequence);
      return true;
    }
    sequence.restore.reset();
    const bool room_comes = blocks.status().code() == Code::kUnavailable;
    if (room_comes && !sequence.awaits_room_since) sequence.awaits_room_since = now;
    if (room_comes || !MakeWayFor(sequence)) return false;
  }
}

// Takes blocks from somebody of lower priority; from pinned sessions when nothing runs at all.
bool Runner::MakeWayFor(const Sequence& sequence) {
  Sequence* lowest = nullptr;
  bool anybody_runs = false;
  for (const auto& [id, other] : sequences_) {
    if (!other->is_admitted()) continue;
    anybody_runs = true;
    if (other->priority < sequence.priority &&
        (lowest == nullptr || other->priority <= lowest->priority)) {
      lowest = other.get();
    }
  }
  if (lowest != nullptr) {
    Preempt(*lowest);
    return true;
  }
  if (anybody_runs || pins_.empty()) return false;
  pins_.erase(pins_.begin());
  return true;
}

void Runner::OnAdmitted(Sequence& sequence) {
  sequence.phase = sequence.blocks->is_loading() ? Phase::kRestoring : Phase::kRunning;
  sequence.passed_over_count = 0;
  sequence.awaits_room_since.reset();
  sequence.admitted = sequence.planned = sequence.arrived_since = clock_.Now();
  sequence.arrived = 0;
  if (!sequence.session_id.empty()) pins_.erase(sequence.session_id);
  sequence.is_first_restore = !std::exchange(sequence.admitted_before, true);
  if (!sequence.is_first_restore) return;
  Usage& usage = sequence.usage;
  usage.queue_time = sequence.admitted - sequence.received;
  const size_t count = sequence.tokens.size();
  usage.prompt_tokens = static_cast<int64_t>(count);
  for (const PositionRange& run : sequence.blocks->AllMissingRuns(count, UINT32_MAX)) {
    const size_t old_end =
        std::clamp<size_t>(sequence.computed_before, run.begin, size_t{run.begin} + run.count);
    usage.recomputed_tokens += static_cast<int64_t>(old_end - run.begin);
    usage.new_tokens += static_cast<int64_t>(run.begin + run.count - old_end);
  }
  usage.host_tokens = sequence.blocks->found().host_tokens;
  usage.disk_tokens = sequence.blocks->found().disk_tokens;
  usage.device_tokens = usage.prompt_tokens - usage.host_tokens - usage.disk_tokens -
                        usage.recomputed_tokens - usage.new_tokens;
}

// Gives up the place: what is sealed stays findable until the slots are needed.
void Runner::Preempt(Sequence& sequence) {
  CHECK(sequence.is_admitted());
  LeaveBlocks(sequence);
  sequence.phase = Phase::kWaiting;
  ++counts_.preemptions;
}

void Runner::LeaveBlocks(Sequence& sequence) {
  sequence.blocks->Release(sequence.tokens);
  sequence.blocks.reset();
  sequence.restore.reset();
}

void Runner::PinIfWanted(const Sequence& sequence) {
  const Result<const Session*> session = sessions_.Find(sequence.session_id);
  if (!session.ok() || !(*session)->settings.pinned) return;
  std::vector<Hold> holds = sequence.blocks->CloneSealed();
  size_t pinned = holds.size();
  for (const auto& [id, other] : pins_) pinned += other.size();
  if (pinned <= store_.stats().capacity / 2) pins_[sequence.session_id] = std::move(holds);
}

// The sequence is gone when this returns; its sink hears of it in Deliver.
void Runner::End(Sequence& sequence, StreamEnd end) {
  if (end.status.ok()) {
    const Status added = AddToSession(sequence, 0);
    if (!added.ok()) end = {.status = added};
  }
  if (sequence.is_admitted()) {
    if (!sequence.session_id.empty()) PinIfWanted(sequence);
    LeaveBlocks(sequence);
  }
  if (!sequence.session_id.empty()) {
    by_session_.erase(sequence.session_id);
    const Result<const Session*> session = sessions_.Find(sequence.session_id);
    if (session.ok()) {
      const int64_t computed =
          std::min(static_cast<int64_t>(sequence.computed_end), (*session)->token_count());
      CHECK(sessions_.MarkComputed(sequence.session_id, computed).ok());
      CHECK(sessions_.Touch(sequence.session_id).ok());  // a time to live counts from the end
    }
  }
  end.usage = sequence.usage;
  end.usage.seed = sequence.seed;
  if (sequence.first_token) {
    end.usage.first_token_time = *sequence.first_token - sequence.received;
    end.usage.decode_time = sequence.last_token - *sequence.first_token;
  }
  deliveries_.push_back(
      {sequence.id, sequence.session_id, sequence.sink, std::nullopt, std::move(end)});
  sequences_.erase(SequenceId(sequence.id));
}

void Runner::Deliver() {
  std::vector<Delivery> deliveries = std::exchange(deliveries_, {});
  for (Delivery& delivery : deliveries) {
    if (delivery.sink == nullptr) continue;  // a prefetch
    if (journal_ != nullptr && !delivery.session_id.empty()) {
      journal_->Deliver(std::move(delivery));
      continue;
    }
    if (delivery.update && !delivery.sink->OnTokens(*std::move(delivery.update))) {
      Pause(delivery.id);
    }
    if (delivery.end) delivery.sink->OnEnd(*std::move(delivery.end));
  }
}

void Runner::EndRound() {
  Deliver();
  if (journal_ != nullptr) journal_->Submit(sessions_);
}

void Runner::CheckInvariants() const {
  for (const auto& [id, sequence] : sequences_) {
    CHECK(sequence->id == id);
    const bool has_blocks =
        sequence->phase == Phase::kRestoring || sequence->phase == Phase::kRunning;
    CHECK(has_blocks == sequence->is_admitted());
    CHECK(sequence->released_count <= sequence->tokens.size());
    if (!sequence->session_id.empty()) CHECK(by_session_.at(sequence->session_id) == id);
  }
  store_.CheckInvariants();
  sessions_.CheckInvariants();
}

}  // namespace cairn
