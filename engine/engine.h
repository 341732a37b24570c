// The engine: sessions, continuous batching and decoding behind one bounded queue.
//
// One engine thread owns sequences, sessions, schedule and block states (EngineCore). Every method
// here may be called from any thread: it tokenizes on the caller's thread, queues a command and
// returns; the answer comes through a Reply or a TokenSink. When the queue is full the answer is
// kResourceExhausted with a time to retry, when the engine is draining kUnavailable.
//
// When the device is lost, every stream ends with kUnavailable, new work is refused with it, and
// the engine stays so: its owner ends the process. Sessions stay what they are.
//
// With a journal (EngineParts) an answer comes, and a token is handed out, once what it tells of is
// durable: on the journal's thread, one call after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/status.h"
#include "engine/api.h"
#include "engine/engine_config.h"
#include "engine/engine_parts.h"

namespace cairn {

class EngineCore;

// Names one stream for Cancel and Resume; minted by the engine, never reused.
using StreamId = SequenceId;

class Engine {
 public:
  // Starts the engine thread. `config` has been validated.
  Engine(EngineParts parts, const EngineConfig& config, const Clock& clock);
  ~Engine();  // closes it

  // Cancels what runs, makes what sessions changed durable, and stops the threads. Nothing else is
  // asked of the engine after it.
  void Close();
  // For how long the disk has not answered that is to make changes of sessions durable, and of how
  // many sessions. Before the engine is closed, and while it is.
  std::chrono::nanoseconds DiskSilence() const;
  size_t UnwrittenSessions() const;

  const ModelInfo& model_info() const { return model_info_; }

  // Sessions (proto/cairn/v1/session_service.proto has the semantics).
  void CreateSession(CreateSessionRequest request, Reply<SessionInfo> reply);
  void GetSession(SessionRef session, Reply<SessionInfo> reply);
  void ListSessions(ListSessionsRequest request, Reply<SessionPage> reply);
  void UpdateSession(UpdateSessionRequest request, Reply<SessionInfo> reply);
  void DeleteSession(SessionRef session, Reply<Done> reply);
  void ForkSession(ForkSessionRequest request, Reply<SessionInfo> reply);
  void TruncateSession(TruncateRequest request, Reply<SessionInfo> reply);
  void AppendContent(AppendRequest request, Reply<AppendResult> reply);
  // At most `token_count` tokens (0: all) from `start_position`, in one answer.
  void ReadTokens(std::string id, int64_t start_position, int64_t token_count,
                  Reply<TokenRange> reply);
  void SuspendSession(SuspendRequest request, Reply<SessionInfo> reply);
  void PrefetchSession(SessionRef session, Reply<SessionInfo> reply);

  // Streams. The sink hears of every outcome, refusal included; it is kept until OnEnd.
  StreamId Decode(DecodeRequest request, std::shared_ptr<TokenSink> sink);
  StreamId Generate(GenerateRequest request, std::shared_ptr<TokenSink> sink);
  // Ends a stream within one step with `why` (kCancelled, kDeadlineExceeded); no-op when it is
  // over.
  void CancelStream(StreamId stream, Status why);
  // The sink has room again.
  void ResumeStream(StreamId stream);

  // On the caller's thread, without the engine.
  Result<std::vector<uint32_t>> Tokenize(const Content& content) const;
  Result<std::string> Detokenize(const std::vector<uint32_t>& ids) const;

  void LookupPrefix(const Content& content, std::string cache_salt, Reply<Residency> reply);
  // kFailedPrecondition when `last` is asked for and there is none that is remembered.
  void ExplainRestore(ExplainRequest request, Reply<RestoreReport> reply);
  void GetStats(Reply<EngineStats> reply);
  void ClearCache(std::optional<Tier> tier, Reply<Done> reply);

  // Refuses new work from now on (kUnavailable); running streams go on. Calls `drained` once none
  // is left, and none can come.
  void Drain(std::function<void()> drained);
  // Ends every stream with kUnavailable; after Drain.
  void EndStreams();
  // Writes every idle KV block that has no copy on disk, the most valuable first; then calls
  // `done`, once, on the engine thread.
  void SpillIdle(std::function<void()> done);
  // False while the watchdog sees work without progress for longer than the configured time, and
  // once the device is lost.
  bool Healthy() const { return healthy_ && !is_lost_; }
  // Why the device is lost; ok while it is not.
  Status lost() const { return is_lost_ ? lost_ : Status(); }

 private:
  using Command = std::function<void(EngineCore&)>;
  // Queues a request; false when the engine does not take it, and Refusal says why.
  bool Post(Command command);
  // Queues a command of the engine itself, for which there is always a place.
  void PostOwn(Command command);
  Status Refusal() const;
  template <class T, class F>
  void Ask(std::string subject, Reply<T> reply, F command);
  template <class T, class F>
  void Change(std::string subject, Reply<T> reply, F command);
  template <class Request, class F>
  StreamId StartStream(Request request, std::shared_ptr<TokenSink> sink, F start);
  void Run();
  std::chrono::nanoseconds Patience() const;
  void Watch();
  void LogStall(std::chrono::nanoseconds stalled) const;

  const EngineConfig config_;
  const Clock& clock_;
  const ModelInfo model_info_;
  std::unique_ptr<EngineCore> core_;  // engine thread only, except for its const tokenizer
  BoundedQueue<Command> commands_;
  std::atomic<uint64_t> next_stream_{0};
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> healthy_{true};
  Status lost_;  // written once, before the next
  std::atomic<bool> is_lost_{false};
  std::atomic<bool> idle_{true};                           // the engine thread has nothing to do
  std::atomic<Clock::Monotonic::duration> last_progress_;  // since the clock's epoch, unless idle_
  bool takes_streams_ = true;                              // engine thread only, as is the next
  std::function<void()> on_drained_;
  std::binary_semaphore stop_{0};  // ends the watchdog
  std::thread thread_;
  std::thread watchdog_;
};

}  // namespace cairn
