// Makes the changes of sessions durable before anybody hears of them.
//
// The engine thread works in rounds: a few commands, or a step. What a round changes (`changes`)
// and what it has to say (Hold, Deliver) goes to the journal's thread with Submit, which writes the
// changes of one round or of several in one batch, syncs it, and then says what was held, in order.
// Meanwhile the engine computes the next step: one sync serves every stream of a step, and its time
// hides behind computing. Everything that is said of a session with changes that are not durable
// yet goes this way, answers that changed nothing included, so that nobody sees what a crash could
// take back. Rounds that changed nothing are not synced.
//
//   engine thread     collect --Submit--> [at most kRoundsMax rounds] --> write, sync --> say
//                                              journal's thread
//
// When a batch fails, what was held for the sessions that it changed, and for those of every later
// round, gets the failure instead: tokens are dropped, an answer or the end of a stream becomes the
// failure. Nothing is written any more until the engine has seen it (TakeFailure), by when it has
// read those sessions again from the store. Answers about other sessions are said as they are.
//
// A disk that does not answer must not hold up the engine: when there has been no room for a round
// for a while, the journal is behind. Submit waits no longer then, and what is collected goes with
// a later round; whoever could make more of it rests or is refused until the disk answers.
//
// (1) What is said of a session was durable before it was said, or tells of a failure.
// (2) What is said comes in the order in which it was held.
// (3) Between a failure and TakeFailure the store does not change.
// Threads: the engine thread, but for what it holds: that runs on the journal's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/delivery.h"
#include "engine/session_changes.h"
#include "engine/session_store.h"
#include "engine/session_table.h"
#include "offload/durable_store.h"

namespace cairn {

struct JournalCounts {
  uint64_t commits = 0;
  uint64_t failed_commits = 0;  // tried and failed, or not tried because one before had failed
};

class SessionJournal {
 public:
  static constexpr size_t kRoundsMax = 8;  // that wait to be written; then Submit waits
  static constexpr size_t kBytesMax = 16u << 20;
  static constexpr std::chrono::milliseconds kPatience{500};  // then Submit waits no longer

  // An answer is about a session's id, about no session, or about any of them.
  static constexpr const char* kNoSession = "";
  static constexpr const char* kAnySession = "*";

  // `loaded`: what the store has, of which there is no change yet. `clock` outlives the journal.
  SessionJournal(std::unique_ptr<DurableStore> store, CommitSync sync, StoredSessions loaded,
                 const Clock& clock, std::chrono::milliseconds patience = kPatience);
  ~SessionJournal();

  const DurableStore& store() const { return *store_; }
  StoredSessions TakeLoaded() { return std::move(loaded_); }

  SessionChanges& changes() { return changes_; }
  // `say` is called once, with ok or with why what it would say is not durable.
  void Hold(std::string subject, std::function<void(const Status& made)> say);
  void Deliver(Delivery delivery);
  // Ends the round; `sessions` is the table that `changes` are of.
  void Submit(const SessionTable& sessions);
  // Whether something about `subject` may not be durable yet, so that an answer has to be held.
  bool Concerns(const std::string& subject) const;
  // Ok, or the journal is behind, and for how long: kUnavailable.
  Status KeepsUp() const;
  // Since when it is behind.
  std::optional<Clock::Monotonic> behind_since() const { return behind_since_; }
  // For how long the batch has been written that is being written. Any thread.
  std::chrono::nanoseconds WritingFor() const;
  // Of so many sessions changes were submitted that are not durable yet. Any thread.
  size_t UnwrittenCount() const;
  // Streams whose sinks were full; each at least once after the last time that it was.
  std::vector<SequenceId> TakeFull();

  struct Failure {
    Status why;
    std::set<std::string> sessions;  // ids: to be read again
  };
  // Once: whether the store has lost something, anything, of what it had.
  bool TakeLost() { return lost_.exchange(false); }
  // Whether a commit has failed that TakeFailure has not told of. Cheap.
  bool failed() const;
  // Ends the round, and waits until all that was submitted is over, which takes no disk any more.
  // From now on batches are written again.
  std::optional<Failure> TakeFailure(const SessionTable& sessions);

  // Ends the last round, writes and says everything, and stops the thread.
  void Close(const SessionTable& sessions);
  JournalCounts counts() const;

 private:
  struct Held {
    std::string subject;
    std::function<void(const Status&)> say;
  };
  struct Round {
    DurableBatch batch;
    std::set<std::string> changed;  // ids
    std::vector<Held> held;
  };

  bool IsEmpty() const { return changes_.empty() && held_.empty(); }
  Round Collect(const SessionTable& sessions);
  bool HasRoom() const {
    return pending_rounds_ < kRoundsMax && pending_.batch.bytes() < kBytesMax;
  }
  bool WaitForRoom();
  void Queue(Round round);
  void Run();
  Status Write(const DurableBatch& batch, const std::optional<Failure>& failure);
  void NoteOutcome(const Status& status);
  void Say(Round& round, const std::optional<Failure>& failure);
  void Stop();
  void Tell(Delivery& delivery, const Status& made);

  const std::unique_ptr<DurableStore> store_;
  const CommitSync sync_;
  const Clock& clock_;
  const std::chrono::milliseconds patience_;
  StoredSessions loaded_;

  SessionChanges changes_;  // of the round that is collected, as is `held_`
  std::vector<Held> held_;
  std::optional<Clock::Monotonic> behind_since_;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  Round pending_;
  size_t pending_rounds_ = 0;
  bool busy_ = false;                // the thread writes or says
  std::set<std::string> busy_with_;  // ids that its round has changed
  std::optional<Clock::Monotonic> writing_since_;
  bool closing_ = false;
  std::optional<Failure> failure_;
  JournalCounts counts_;
  std::atomic<bool> lost_ = false;

  std::mutex full_mutex_;  // held while a sink is told, so that TakeFull comes after its answer
  std::set<SequenceId> full_;

  // The thread's own: of the spell of failures that is on, if one is.
  std::optional<Clock::Monotonic> failing_since_;
  uint64_t failed_in_spell_ = 0;

  std::thread thread_;
};

}  // namespace cairn
