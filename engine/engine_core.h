// What the engine thread owns: sessions, sequences, blocks, and the rules between them. It has no
// thread and no lock of its own, so a test can drive it step by step.
// Threads: one at a time, except for what says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/api.h"
#include "engine/content.h"
#include "engine/engine_config.h"
#include "engine/engine_parts.h"
#include "engine/runner.h"
#include "engine/session_table.h"

namespace cairn {

// A stream as it enters: its name, where its tokens go, and when it was asked for.
struct StreamStart {
  SequenceId id;
  std::shared_ptr<TokenSink> sink;
  Clock::Monotonic received;
};

class EngineCore {
 public:
  // `seed`: of minted ids and of seeds that nobody named. `config` and `clock` outlive this.
  EngineCore(EngineParts parts, const EngineConfig& config, const Clock& clock, uint64_t seed);

  // Any thread.
  const ContentEncoder& encoder() const { return encoder_; }
  const Tokenizer& tokenizer() const { return *parts_.tokenizer; }
  const ModelInfo& model_info() const { return parts_.model_info; }

  // As in engine.h; `content` is the request's, encoded.
  Result<SessionInfo> CreateSession(const CreateSessionRequest& request, EncodedContent content);
  Result<SessionInfo> GetSession(const std::string& id);
  Result<SessionPage> ListSessions(const ListSessionsRequest& request);
  Result<SessionInfo> UpdateSession(const UpdateSessionRequest& request);
  Result<Done> DeleteSession(const std::string& id);
  Result<SessionInfo> ForkSession(const ForkSessionRequest& request);
  Result<SessionInfo> TruncateSession(const std::string& id, int64_t token_count);
  Result<AppendResult> AppendContent(const AppendRequest& request, EncodedContent content);
  Result<TokenRange> ReadTokens(const std::string& id, int64_t start_position, int64_t token_count);
  // Answers when everything has left that could.
  void SuspendSession(const std::string& id, Tier tier, Reply<SessionInfo> reply);
  Result<SessionInfo> PrefetchSession(const std::string& id, SequenceId sequence);

  void Decode(const StreamStart& start, const DecodeRequest& request, EncodedContent content);
  void Generate(const StreamStart& start, const GenerateRequest& request, EncodedContent content);
  void CancelStream(SequenceId id, const Status& why) { runner_.Cancel(id, why); }
  void ResumeStream(SequenceId id);
  void CancelAll(const Status& why) { runner_.CancelAll(why); }

  void SpillIdle(std::function<void()> done) { parts_.blocks->SpillAll(std::move(done)); }

  Result<Residency> LookupPrefix(EncodedContent content, const std::string& cache_salt);
  Result<RestoreReport> ExplainRestore(const ExplainRequest& request);
  Result<EngineStats> GetStats();
  Result<Done> ClearCache(std::optional<Tier> tier);

  // Answers `reply` once what `result` tells of is durable. `subject` is the session that it is
  // about, or one of SessionJournal's names for none and any.
  template <class T>
  void Answer(const std::string& subject, const Reply<T>& reply, Result<T> result) {
    if (parts_.journal == nullptr || !parts_.journal->Concerns(subject)) {
      return reply(std::move(result));
    }
    if (const Status keeps_up = CanChangeSessions(); !keeps_up.ok()) {
      // It has changed nothing. A list is of use even if it shows what is not durable yet.
      return reply(subject == SessionJournal::kAnySession ? std::move(result) : keeps_up);
    }
    parts_.journal->Hold(subject, [reply, result = std::move(result)](const Status& made) mutable {
      reply(made.ok() ? std::move(result) : made);
    });
  }
  // kUnavailable while the disk does not answer: a change would wait for it, for nobody knows how
  // long.
  Status CanChangeSessions() const {
    return parts_.journal == nullptr ? Status() : parts_.journal->KeepsUp();
  }
  // For how long the disk has not answered the journal. Any thread.
  std::chrono::nanoseconds DiskSilence() const {
    return parts_.journal == nullptr ? std::chrono::nanoseconds(0) : parts_.journal->WritingFor();
  }
  size_t UnwrittenCount() const {
    return parts_.journal == nullptr ? 0 : parts_.journal->UnwrittenCount();
  }
  // Calls `then` once everything before it has been said.
  void WhenAllIsSaid(const std::function<void()>& then);

  // Before each batch of commands: takes back what could not be made durable, and removes expired
  // sessions.
  void BeginRound();
  // One step; false when there was nothing to do. Ends the round.
  bool Step() { return runner_.Step(); }
  bool HasWork() const { return runner_.HasWork(); }
  const Status& lost() const { return runner_.lost(); }  // as in runner.h
  size_t stream_count() const { return runner_.sequence_count(); }
  void ExpireSessions();
  // After the last step: everything is made durable and said.
  void Close();
  // A suspension is under way, and somebody waits for its answer.
  bool HasDepartures() const { return parts_.blocks->has_departures(); }
  // Answers now, whatever has left.
  void EndDepartures() { parts_.blocks->EndDepartures(); }
  // Moves are under way that do not ring when they end.
  bool HasCopiesUnderWay() const { return parts_.blocks->has_copies_under_way(); }
  WakeSignal* wake() const { return parts_.wake.get(); }
  // Any thread.
  std::vector<SequenceState> StatesAtStep() const { return runner_.StatesAtStep(); }
  void CheckInvariants() const { runner_.CheckInvariants(); }

 private:
  void RestoreSessions();
  void PauseFullStreams();
  void TakeBackFailures();
  bool ReadAgain(const std::string& id);
  void WriteAgain();
  void Refuse(const StreamStart& start, const std::string& session_id, const Status& why);
  Status StartDecode(const StreamStart& start, const DecodeRequest& request,
                     EncodedContent content);
  Status StartGenerate(const StreamStart& start, const GenerateRequest& request,
                       EncodedContent content);
  std::unique_ptr<Sequence> NewSequence(const StreamStart& start, std::vector<uint32_t> tokens,
                                        const SamplingParams& sampling, uint64_t seed) const;
  Status BeginSuspend(const std::string& id, Tier tier);
  void AddTierStats(EngineStats& stats) const;
  Status CheckStream(uint32_t max_tokens, const SamplingParams& sampling) const;
  uint32_t MaxTokens(uint32_t asked) const;
  // kAborted while a stream decodes the session; a prefetch is cancelled instead.
  Status ClaimSession(const std::string& id);
  BlockKey RootFor(const std::string& cache_salt) const;
  SessionInfo InfoOf(const Session& session) const;
  Residency ResidencyOf(const BlockKey& root, std::span<const uint32_t> tokens) const;

  EngineParts parts_;
  const EngineConfig& config_;
  const Clock& clock_;
  ContentEncoder encoder_;
  SessionTable sessions_;
  Runner runner_;
  Rng rng_;
  std::set<std::string> unread_;  // sessions that could not be read again
  Clock::Monotonic read_again_at_;
  std::vector<std::string> unwritten_;  // sessions of which the disk may have lost something
};

}  // namespace cairn
