// Runs sequences: admits them, plans and computes steps, samples, and hands tokens out.
//
// A step is: admit -> plan (scheduler.h) -> forward -> sample -> commit -> deliver. Commit changes
// sequences and sessions; deliver then tells the sinks, or has the journal tell them once the
// changes are durable.
//
// A pass that the device cannot do changes nothing but its sequences: they end with kInternal,
// since what is wrong may be with them. When the device is lost, or passes fail again and again,
// every sequence ends with kUnavailable, and none runs any more.
//
// (1) A sequence in kRestoring or kRunning holds every block of its context; no other one holds
//     blocks, except for pinned sessions that are idle.
// (2) A session has at most one sequence.
// (3) Someone always gets on: when nothing runs, whoever waits is admitted (pins give way) or is
//     refused because it can never fit.
// Threads: the engine thread only, except for StatesAtStep.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/api.h"
#include "engine/delivery.h"
#include "engine/engine_config.h"
#include "engine/model.h"
#include "engine/restore_log.h"
#include "engine/restore_share.h"
#include "engine/restore_strategy.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/session_journal.h"
#include "engine/session_table.h"
#include "engine/tokenizer.h"
#include "engine/trace.h"
#include "offload/block_store.h"

namespace cairn {

struct RunnerCounts {
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t recomputed_tokens = 0;  // rows of positions that had been computed before
  std::chrono::nanoseconds step_time{0};
  std::chrono::nanoseconds forward_time{0};
};

class Runner {
 public:
  // Everything outlives the runner; `trace` and `journal` may be null.
  Runner(Model& model, BlockStore& store, RestoreStrategy& restores, SessionTable& sessions,
         const Tokenizer& tokenizer, const EngineConfig& config, const Clock& clock,
         TraceWriter* trace, SessionJournal* journal);

  // Takes a sequence in kReplaying or kWaiting.
  void Start(std::unique_ptr<Sequence> sequence);
  // Ends it now with `why`; no-op when it is over.
  void Cancel(SequenceId id, const Status& why);
  void CancelAll(const Status& why);
  void Pause(SequenceId id);
  void Resume(SequenceId id);

  // One step. False when there was nothing to do.
  bool Step();
  // Of a device that is lost, why it is. The step after the one that finds out ends everything.
  const Status& lost() const { return lost_; }
  // Whether a step would find something to do, as far as is known.
  bool HasWork() const;

  const Sequence* FindBySession(const std::string& session_id) const;
  size_t sequence_count() const { return sequences_.size(); }
  size_t running_count() const;
  size_t waiting_count() const { return sequences_.size() - running_count(); }
  const RunnerCounts& counts() const { return counts_; }

  // Every sequence, as the latest step found it. Any thread, also while that step hangs.
  std::vector<SequenceState> StatesAtStep() const;

  // How a session of these tokens, `computed_count` of which were computed before, would come back
  // if it were asked for now.
  RestoreReport ExplainNow(const BlockKey& root, const std::vector<uint32_t>& tokens,
                           size_t computed_count);
  // How sessions came back.
  const RestoreLog& restore_log() const { return restore_log_; }
  void ForgetRestore(const std::string& session_id) { restore_log_.Forget(session_id); }

  // Gives up the blocks that a pinned session keeps.
  void Unpin(const std::string& session_id) { pins_.erase(session_id); }

  void CheckInvariants() const;

 private:
  // What one sequence does in a step.
  struct Work {
    Sequence* sequence;
    bool is_decode = false;
    std::vector<PositionRange> runs;  // rows that write K and V
    PassSample restored;              // those of a context that comes back, new ones included
    CopyRef arrival;                  // of a wave: what comes layer by layer meanwhile
    bool samples = false;
  };

  std::optional<Clock::Monotonic> RestsSince(const Sequence& sequence) const;
  void NoteStates();
  bool ReplaySome();
  void Replay(Sequence& sequence);
  void ReleaseLongPaused();
  ContextBlocks::Planner PlannerFor(const Sequence& sequence);
  void SetRestoredEnd(Sequence& sequence, std::span<const Origin> origins) const;
  ContextBlocks::Planner FirstPlannerFor(Sequence& sequence);
  RestorePlan PlanAndReport(const Sequence& sequence, std::span<const Origin> origins,
                            RestoreReport& report);
  RestoreReport ReportFor(const Sequence& sequence, const RestorePlan& plan,
                          std::span<const Origin> origins) const;
  void ReportAgain(Sequence& sequence, const RestorePlan& plan, std::span<const Origin> origins);
  void FinishRestore(Sequence& sequence);
  void TraceRestore(const Sequence& sequence, const RestoreReport& report, Clock::Monotonic now);
  void TraceRestoredRows(const std::vector<Work>& works, Clock::Monotonic begin,
                         Clock::Monotonic end);
  uint32_t DecodeRowCount() const;
  void SettleRestoring();
  void Settle(Sequence& sequence, const std::function<Status(ContextBlocks&)>& change);
  void ReviseRestores(Clock::Monotonic step_begin);
  std::vector<Sequence*> RestoresToRevise(Clock::Monotonic step_begin);
  void ReviseTogether(const std::vector<Sequence*>& restores, Clock::Monotonic step_begin);
  RestoreView ViewOf(const Sequence& sequence, std::span<const Origin> blocks) const;
  void SetReaches();
  static void NoteNoWave(Sequence& sequence, NoWave why);
  ContextBlocks::Reach ReachOf(Sequence& sequence) const;
  double WaveStall(Sequence& sequence, const QueuedCopy& arrival) const;
  void Admit();
  std::vector<Sequence*> WaitingInOrder();
  bool TryAdmit(Sequence& sequence);
  bool MakeWayFor(const Sequence& sequence);
  void OnAdmitted(Sequence& sequence);

  std::vector<Work> PlanWork();
  StepBudget BudgetFor(std::span<const SequenceView> runnable);
  Work WorkFor(Sequence& sequence, uint32_t row_count);
  Result<std::span<const RowLogits>> Compute(const std::vector<Work>& works);
  void FailPass(const std::vector<Work>& works, const Status& why);
  bool FindLoss();
  bool EndEverything();
  void Commit(const std::vector<Work>& works, std::span<const RowLogits> logits);
  bool MarkWritten(const Work& work);
  bool EndArrival(Sequence& sequence);
  size_t RowCount() const;  // of the latest pass
  bool IsRestoring() const;
  void LearnFromPass(const std::vector<Work>& works, std::chrono::nanoseconds forward_time,
                     std::chrono::nanoseconds step_time);
  void CommitToken(Sequence& sequence, const RowLogits& logits);
  bool Release(Sequence& sequence, Released released);
  Status AddToSession(Sequence& sequence, size_t released_count);
  void MakeRoom(Sequence& sequence);
  void Preempt(Sequence& sequence);
  void LeaveBlocks(Sequence& sequence);
  void End(Sequence& sequence, StreamEnd end);
  void Deliver();
  void EndRound();
  void PinIfWanted(const Sequence& sequence);
  Sequence* Find(SequenceId id);
  bool EndsStream(const Sequence& sequence, uint32_t token) const;

  Model& model_;
  BlockStore& store_;
  RestoreStrategy& restores_;
  SessionTable& sessions_;
  const Tokenizer& tokenizer_;
  const EngineConfig& config_;
  const Clock& clock_;
  TraceWriter* trace_;
  SessionJournal* journal_;

  Sampler sampler_;
  RestoreShare restore_share_;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::map<std::string, SequenceId> by_session_;
  std::map<std::string, std::vector<Hold>> pins_;
  std::vector<Delivery> deliveries_;
  std::vector<BatchSegment> segments_;
  uint32_t failed_passes_ = 0;  // in a row
  Status lost_;
  RunnerCounts counts_;
  RestoreLog restore_log_;

  mutable std::mutex states_mutex_;
  std::vector<SequenceState> states_;  // under states_mutex_
};

}  // namespace cairn
