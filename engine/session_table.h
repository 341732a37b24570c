// The sessions of an engine: their settings and tokens, in memory.
//
// The table's time is the moment of the last ExpireNow and stands still in between. Call that
// before each command: it removes the sessions that have expired by then, and a session that a
// command finds is there until the command is over, however short its time to live.
//
// Every change goes through one of the methods below that are not const; a refused one changes
// nothing.
//
// (1) total_token_count() is the sum over all sessions, at most config.session_tokens_max.
// (2) A session holds at most config.context_length tokens.
// (3) 0 <= computed_token_count <= tokens.size().
// (4) `expiries_` has exactly the sessions that can expire, at the time at which they will.
//
// Pointers to sessions stay valid until the session is deleted or expired.
// Threads: engine thread only.
#pragma once

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

namespace cairn {

struct Session {
  std::string id;
  SessionSettings settings;
  std::vector<uint32_t> tokens;
  // Tokens at the front whose KV has ever been computed, whether or not a copy is left.
  int64_t computed_token_count = 0;
  // Drawn at creation; samples where neither request nor settings name a seed, so that a stream
  // that is asked for again gives the same tokens. A fork draws its own.
  uint64_t seed = 0;
  Clock::Wall create_time;
  Clock::Wall update_time;    // last change of settings or tokens
  Clock::Wall last_use_time;  // from which a time to live counts
  std::string parent_id;      // the session that this was forked from; empty if none
  // Counts changes of the settings. Tokens have their own guard, expected_token_count, so that a
  // running stream does not make every update of a setting stale.
  uint64_t revision = 1;
  std::string cache_salt;

  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }
  std::optional<Clock::Wall> expire_time() const;  // none: never
  std::string etag() const;
};

class SessionTable {
 public:
  // `seed`: of minted ids and of sessions' seeds. `config` and `clock` outlive the table.
  SessionTable(const EngineConfig& config, uint32_t vocabulary_size, const Clock& clock,
               uint64_t seed);

  // A session without tokens; `request.content` is the caller's to append. kAlreadyExists;
  // kResourceExhausted at config.session_count_max; kInvalidArgument for an id or a setting.
  Result<const Session*> Create(const CreateSessionRequest& request);
  // A new session with the first tokens and the settings of another. Besides the errors of Create:
  // kNotFound; kInvalidArgument for a token_count that the session does not have;
  // kResourceExhausted at config.session_tokens_max.
  Result<const Session*> Fork(const ForkSessionRequest& request);
  // kNotFound when there is none (any more).
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

  size_t session_count() const { return sessions_.size(); }
  uint64_t total_token_count() const { return total_token_count_; }
  void CheckInvariants() const;

 private:
  Result<Session*> FindMutable(const std::string& id);
  // The id to use: `wanted` when it is valid and free, or a minted one when it is empty.
  Result<std::string> ClaimId(const std::string& wanted);
  Status CheckTokensFit(uint64_t count) const;
  const Session* Insert(Session session);
  void Erase(const Session& session);
  void ForgetExpiry(const Session& session);
  // The session is used now, and `patch` is applied; the moment. Keeps (4).
  Clock::Wall MarkUsed(Session& session, const SessionPatch& patch = {});

  const EngineConfig& config_;
  const uint32_t vocabulary_size_;
  const Clock& clock_;
  Rng rng_;
  Clock::Wall now_;  // never goes back, though the clock may be set back
  std::map<std::string, Session> sessions_;
  std::set<std::pair<Clock::Wall, std::string>> expiries_;
  uint64_t total_token_count_ = 0;
};

}  // namespace cairn
