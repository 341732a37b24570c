// The sessions of an engine: their settings and tokens, in memory.
//
// The table's time is the moment of the last ExpireNow and stands still in between. Call that
// before each command: it removes the sessions that have expired by then, and a session that a
// command finds is there until the command is over, however short its time to live.
//
// A fixed moment of expiry is one of the wall clock, whatever that clock is set to. A time to live
// counts the time that servers have lived: the monotonic clock from the start of this one, on top
// of what the ones before it had counted. So a wall clock that jumps, a night without a server or a
// machine that wakes up in another year ends no session before its time; what a crash takes of the
// count (the time since the last change that was made durable) lets sessions live longer.
//
// Every change goes through one of the methods below that are not const; a refused one changes
// nothing. They tell `changes` of it, if there is one, so that it can be made durable.
//
// A session that was stored and cannot be served is set aside: whoever asks for it is told why, its
// id is taken, and it can be deleted.
//
// (1) total_token_count() is the sum over all sessions, at most config.session_tokens_max. What was
//     stored is restored in any case, also when the bounds were wider then; new ones have to wait.
// (2) A session holds at most config.context_length tokens.
// (3) 0 <= computed_token_count <= tokens.size().
// (4) `moments_` and `lifetimes_` have exactly the sessions that can expire, at the time at which
//     they will.
//
// Pointers to sessions stay valid until the session is deleted, expired or restored.
// Threads: engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "engine/api.h"
#include "engine/engine_config.h"
#include "engine/session.h"
#include "engine/session_changes.h"
#include "engine/session_order.h"

namespace cairn {

// A session as a disk has kept it.
struct StoredSession {
  Status damage;    // ok, or why it cannot be served; only its id and serial are of use then
  Session session;  // serial 0: unknown
};

class SessionTable {
 public:
  // `seed`: of minted ids and of sessions' seeds. `changes` may be null. All outlive the table.
  SessionTable(const EngineConfig& config, uint32_t vocabulary_size, const Clock& clock,
               uint64_t seed, SessionChanges* changes = nullptr);

  // Goes on where the table of an earlier server stopped. On an empty table.
  void Continue(uint64_t next_serial, std::chrono::nanoseconds lived);
  // Puts a session back as it was stored, or sets it aside and says why. No change to tell of.
  Status Restore(StoredSession stored);
  // Takes a session out, or what was set aside of it. No change to tell of.
  void Forget(const std::string& id);
  uint64_t next_serial() const { return next_serial_; }
  std::chrono::nanoseconds lived() const { return lived_; }  // as of the table's time

  // A session without tokens; `request.content` is the caller's to append. kAlreadyExists;
  // kResourceExhausted at config.session_count_max; kInvalidArgument for an id or a setting.
  Result<const Session*> Create(const CreateSessionRequest& request);
  // A new session with the first tokens and the settings of another. Besides the errors of Create:
  // kNotFound; kInvalidArgument for a token_count that the session does not have;
  // kResourceExhausted at config.session_tokens_max.
  Result<const Session*> Fork(const ForkSessionRequest& request);
  // kNotFound when there is none (any more); for one that is set aside, why.
  Result<const Session*> Find(const std::string& id) const;
  Result<SessionPage> List(const ListSessionsRequest& request) const;
  Result<const Session*> Update(const UpdateSessionRequest& request);
  Status Delete(const std::string& id);

  // Forgets the tokens from `token_count` on; kInvalidArgument unless it is in 0..N.
  Result<const Session*> Truncate(const std::string& id, int64_t token_count);
  // Whether Append would take `count` tokens: kAborted when the session does not hold
  // `expected_token_count`, kInvalidArgument over the context, kResourceExhausted at
  // config.session_tokens_max.
  Status CheckAppend(const std::string& id, uint64_t count,
                     std::optional<int64_t> expected_token_count) const;
  // Puts `tokens` (ids below the vocabulary size) at the end; the answer is the new count.
  Result<int64_t> Append(const std::string& id, std::span<const uint32_t> tokens,
                         std::optional<int64_t> expected_token_count);
  // Records that the KV of the first `token_count` tokens has been computed. Never lowers the mark.
  Status MarkComputed(const std::string& id, int64_t token_count);
  // The session is used now. Create, Fork (of both), Update, Truncate and Append do this too.
  Status Touch(const std::string& id);
  // Moves the table's time to now and removes what has expired by then; their ids, for whoever
  // keeps something for them. A session that is `in_use` is being used now: a time to live does not
  // run out under it, a fixed moment does.
  std::vector<std::string> ExpireNow(const std::function<bool(const std::string& id)>& in_use);

  // As List and the calls of the API report it, but for state and residency.
  SessionInfo Info(const Session& session) const;

  // The most tokens that `session` has in common with another one of its salt, from position 0 on.
  size_t SharedPrefix(const Session& session) const { return order_.SharedPrefix(session); }

  std::vector<std::string> ids() const;
  // Has all of a session written again; the bytes of its tokens. 0 when there is no session.
  size_t WriteAgain(const std::string& id);

  size_t session_count() const { return sessions_.size(); }
  uint64_t total_token_count() const { return total_token_count_; }
  void CheckInvariants() const;

 private:
  Result<Session*> FindMutable(const std::string& id);
  // The id to use: `wanted` when it is valid and free, or a minted one when it is empty.
  Result<std::string> ClaimId(const std::string& wanted);
  Status CheckTokensFit(uint64_t count) const;
  Status CheckFits(const Session& session) const;
  std::optional<Clock::Wall> ExpireTime(const Session& session) const;
  const Session* Insert(Session session);
  void Erase(const Session& session);
  // Keep (4) around a change of settings or uses.
  void ForgetExpiry(const Session& session);
  void NoteExpiry(const Session& session);
  // The session is used now; the moment.
  Clock::Wall MarkUsed(Session& session, const SessionPatch& patch = {});

  struct Aside {
    uint64_t serial;
    Status why;
  };

  const EngineConfig& config_;
  const uint32_t vocabulary_size_;
  const Clock& clock_;
  Rng rng_;
  SessionChanges* const changes_;
  Clock::Wall now_;
  const Clock::Monotonic started_;
  std::chrono::nanoseconds lived_before_{0};  // by earlier servers
  std::chrono::nanoseconds lived_{0};         // never goes back
  uint64_t next_serial_ = 1;
  std::map<std::string, Session> sessions_;
  SessionOrder order_;
  std::map<std::string, Aside> aside_;
  std::set<std::pair<Clock::Wall, std::string>> moments_;
  std::set<std::pair<std::chrono::nanoseconds, std::string>> lifetimes_;  // ends, as `lived`
  uint64_t total_token_count_ = 0;
  uint64_t token_bound_;  // of (1), or what was restored beyond it
  size_t session_bound_;  // likewise of config.session_count_max
};

}  // namespace cairn
