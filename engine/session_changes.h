// What has happened to the sessions of a table since somebody last took note: which ones are to be
// written again, and from which token on. The table's methods call it before they change a session;
// what a session has become, the table says.
//
// It does not tell of uses and of computed tokens, which are written with the next change.
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "engine/session.h"

namespace cairn {

struct SessionChange {
  std::string id;
  bool gone = false;         // nothing of it is left
  bool settings = false;     // everything but tokens and times
  int64_t noted_tokens = 0;  // so many it had when note was last taken; 0 for a new one
  int64_t kept_tokens = 0;   // so many of these are still what they were
};

class SessionChanges {
 public:
  // By serial: of two sessions with the same id, the later one comes later.
  using Map = std::map<uint64_t, SessionChange>;

  void Create(const Session& session) {
    changes_[session.serial] = {.id = session.id, .settings = true};
  }
  void ChangeSettings(const Session& session) { Of(session).settings = true; }
  // All but the first `kept` tokens will be others, or none.
  void ChangeTokens(const Session& session, int64_t kept) {
    SessionChange& change = Of(session);
    change.kept_tokens = std::min(change.kept_tokens, kept);
  }
  // Nothing of what was written of it is to be relied upon.
  void ChangeAll(const Session& session) {
    SessionChange& change = Of(session);
    change.settings = true;
    change.noted_tokens = INT64_MAX;
    change.kept_tokens = 0;
  }
  void Remove(const std::string& id, uint64_t serial) {
    changes_[serial] = {.id = id, .gone = true};
  }

  bool empty() const { return changes_.empty(); }
  bool Has(const std::string& id) const {
    return std::ranges::any_of(changes_, [&](const auto& entry) { return entry.second.id == id; });
  }
  Map Take() { return std::exchange(changes_, {}); }

 private:
  SessionChange& Of(const Session& session) {
    const int64_t count = session.token_count();
    return changes_
        .try_emplace(session.serial,
                     SessionChange{.id = session.id, .noted_tokens = count, .kept_tokens = count})
        .first->second;
  }

  Map changes_;
};

}  // namespace cairn
