// Where sessions lie in a DurableStore: which keys there are, and how they are read and written.
// The records are session_codec.h's.
//
//   m                    the model whose tokens these are: digest of its vocabulary, and its name
//   l                    the ledger
//   s ID 0               a session's settings
//   p SERIAL             its progress
//   t SERIAL CHUNK       its tokens, 1,024 in a chunk, all chunks full but the last
//
// A value that a damaged table has lost is empty, which none of these ever is.
// Numbers are big-endian in keys, so that they are in order. A session is in one piece: what is
// read must have the digest that its progress names, or it is damaged. Tokens and progress of no
// session are garbage; a load takes them out, unless settings are damaged, whose serial nobody
// knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "engine/session_changes.h"
#include "engine/session_codec.h"
#include "engine/session_table.h"
#include "engine/tokenizer.h"
#include "offload/durable_store.h"

namespace cairn {

inline constexpr size_t kChunkTokens = 1024;
// Of keys by which a session is known even when nothing else is left of it.
inline constexpr const char* kNamesPrefix = "s";

struct StoredSessions {
  SessionLedger ledger;
  Status ledger_damage;                 // not ok: the ledger is what can be told from the sessions
  std::vector<StoredSession> sessions;  // by id
  uint64_t garbage_count = 0;           // keys that were of no session, and are gone
};

// What a token id means: sessions of one vocabulary say something else in another.
Digest VocabularyDigest(const Tokenizer& tokenizer);

// Everything that is stored, for a server with this vocabulary; `model` is its name for people.
// kFailedPrecondition when there are sessions of another vocabulary; kUnavailable when the store
// fails.
Result<StoredSessions> LoadSessions(DurableStore& store, const Digest& vocabulary,
                                    const std::string& model);

// One session, as it is stored now; nothing: there is none.
Result<std::optional<StoredSession>> LoadSession(const DurableStore& store, const std::string& id);

// What makes `change` durable: of the session `serial`, which is now `session` (null: gone).
void AddChange(uint64_t serial, const SessionChange& change, const Session* session,
               DurableBatch& batch);
void AddLedger(const SessionLedger& ledger, DurableBatch& batch);

}  // namespace cairn
