#include "engine/session_store.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/message_text.h"
#include "engine/session_settings.h"

namespace cairn {
namespace {

constexpr const char* kModelKey = "m";
constexpr const char* kLedgerKey = "l";

std::string BigEndian(uint64_t value, size_t byte_count) {
  std::string bytes;
  for (size_t i = byte_count; i > 0; --i) bytes += static_cast<char>(value >> (8 * (i - 1)));
  return bytes;
}

uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

std::string SettingsKey(const std::string& id) { return "s" + id + '\0'; }
std::string ProgressKey(uint64_t serial) { return "p" + BigEndian(serial, 8); }
std::string TokensPrefix(uint64_t serial) { return "t" + BigEndian(serial, 8); }
std::string ChunkKey(uint64_t serial, size_t chunk) {
  return TokensPrefix(serial) + BigEndian(chunk, 4);
}
constexpr size_t kProgressKeyBytes = 1 + 8;
constexpr size_t kChunkKeyBytes = 1 + 8 + 4;

// A session whose pieces come in the order of their keys.
class Assembly {
 public:
  explicit Assembly(StoredSession stored) : stored_(std::move(stored)) {}

  static Assembly Of(std::string_view key, std::string_view record) {
    StoredSession stored;
    stored.damage = DecodeSettings(record, stored.session);
    std::string id(key.substr(1, key.size() - 2));
    if (stored.damage.ok() && stored.session.id != id) {
      stored.damage = Status(Code::kDataLoss,
                             "settings record is of another session, " + Quoted(stored.session.id));
    }
    if (!stored.damage.ok()) stored.session = Session();
    stored.session.id = std::move(id);
    return Assembly(std::move(stored));
  }

  uint64_t serial() const { return stored_.session.serial; }

  void TakeProgress(std::string_view record) {
    Result<SessionProgress> progress = DecodeProgress(record);
    if (!progress.ok()) return Damage(progress.status());
    progress_ = *progress;
  }

  void TakeChunk(std::string_view key, std::string_view bytes) {
    if (!stored_.damage.ok()) return;
    const uint64_t chunk = FromBigEndian(key.substr(kProgressKeyBytes));
    std::vector<uint32_t>& tokens = stored_.session.tokens;
    if (key.size() != kChunkKeyBytes || chunk * kChunkTokens != tokens.size()) {
      return Damage(Status(Code::kDataLoss,
                           "tokens from " + std::to_string(tokens.size()) + " on are missing"));
    }
    Damage(DecodeTokens(bytes, tokens));
    if (tokens.size() > (chunk + 1) * kChunkTokens) {
      Damage(Status(Code::kDataLoss, "chunk " + std::to_string(chunk) + " has " +
                                         std::to_string(bytes.size()) + " bytes"));
    }
  }

  StoredSession Finish() && {
    Session& session = stored_.session;
    if (stored_.damage.ok()) Damage(CheckWhole());
    if (!stored_.damage.ok()) {
      Status why(Code::kDataLoss, "session " + Quoted(session.id) + " is set aside: its " +
                                      stored_.damage.message());
      return {.damage = std::move(why), .session = {.id = session.id, .serial = session.serial}};
    }
    session.token_digest = progress_->token_digest;
    session.computed_token_count = progress_->computed_token_count;
    session.update_time = progress_->update_time;
    session.last_use_time = progress_->last_use_time;
    session.last_use_lived = progress_->last_use_lived;
    return std::move(stored_);
  }

 private:
  void Damage(Status why) {
    if (stored_.damage.ok()) stored_.damage = std::move(why);
  }
  Status CheckWhole() const {
    const Session& session = stored_.session;
    const auto damaged = [](const std::string& why) { return Status(Code::kDataLoss, why); };
    const Status valid_id = ValidateSessionId(session.id, "id");
    if (!valid_id.ok()) return damaged(valid_id.message());
    if (!progress_) return damaged("progress record is missing");
    if (progress_->serial != session.serial)
      return damaged("progress record is of another session");
    if (progress_->token_count != session.tokens.size()) {
      return damaged(std::to_string(progress_->token_count) + " tokens are " +
                     std::to_string(session.tokens.size()));
    }
    if (progress_->token_digest != ExtendTokenDigest(kNoTokensDigest, session.tokens)) {
      return damaged("tokens do not have their digest");
    }
    const int64_t computed = progress_->computed_token_count;
    if (computed >= 0 && computed <= session.token_count()) return Status();
    return damaged("progress record says that " + std::to_string(computed) + " of its " +
                   std::to_string(session.token_count()) + " tokens were computed");
  }

  StoredSession stored_;
  std::optional<SessionProgress> progress_;
};

// The value of one key; nothing: there is none.
Result<std::optional<std::string>> Get(const DurableStore& store, const std::string& key) {
  std::optional<std::string> found;
  RETURN_IF_ERROR(store.Scan(key, [&](std::string_view at, std::string_view value) {
    if (at == key) found = std::string(value);
  }));
  return found;
}

// "DIGEST NAME", in text for whoever looks at the database with other tools.
std::string ModelRecord(const Digest& vocabulary, const std::string& model) {
  return vocabulary.ToHex() + " " + model;
}

Status CheckModel(const DurableStore& store, const std::string& wanted, bool has_sessions) {
  ASSIGN_OR_RETURN(const std::optional<std::string> found, Get(store, kModelKey));
  constexpr size_t kDigits = 32;
  if (!has_sessions || (found && found->substr(0, kDigits) == wanted.substr(0, kDigits))) {
    return Status();
  }
  const std::string model = wanted.substr(kDigits + 1);
  if (!found || found->size() <= kDigits) {
    LogWarning("sessions: which model they are of is lost; they are taken to be of " + model);
    return Status();
  }
  return FailedPrecondition("--disk-dir: its sessions are in the vocabulary of " +
                            found->substr(kDigits + 1) + ", which is not that of " + model +
                            "; give each model a directory of its own");
}

// Sessions that depend on changes which a damaged log or table has lost go back to what they were
// before the damage, where that is whole.
Status GoBackBeforeDamage(DurableStore& store, StoredSessions& loaded) {
  const std::unique_ptr<const DurableStore> before = store.TakeBeforeDamage();
  if (before == nullptr) return Status();
  DurableBatch changes;
  for (StoredSession& stored : loaded.sessions) {
    const uint64_t serial = stored.session.serial;
    if (stored.damage.ok() || serial == 0) continue;
    ASSIGN_OR_RETURN(std::optional<StoredSession> older, LoadSession(*before, stored.session.id));
    if (!older || !older->damage.ok() || older->session.serial != serial) continue;
    stored = *std::move(older);
    const Session& session = stored.session;
    LogWarning("session " + Quoted(session.id) + " is what it was before the damage, with " +
               std::to_string(session.token_count()) + " tokens");
    AddChange(serial, {.id = session.id, .gone = true}, nullptr, changes);
    AddChange(serial, {.id = session.id, .settings = true}, &session, changes);
  }
  return changes.empty() ? Status() : store.Commit(changes, CommitSync::kDevice);
}

}  // namespace

Digest VocabularyDigest(const Tokenizer& tokenizer) {
  DigestStream digest;
  for (uint32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    digest.Add(std::to_string(bytes.size()) + (tokenizer.IsControl(id) ? "c" : "t"));
    digest.Add(bytes);
  }
  return digest.Finish();
}

Result<StoredSessions> LoadSessions(DurableStore& store, const Digest& vocabulary,
                                    const std::string& model) {
  std::vector<Assembly> assemblies;  // by id
  RETURN_IF_ERROR(store.Scan("s", [&](std::string_view key, std::string_view value) {
    assemblies.push_back(Assembly::Of(key, value));
  }));
  RETURN_IF_ERROR(CheckModel(store, ModelRecord(vocabulary, model), !assemblies.empty()));
  StoredSessions loaded;
  ASSIGN_OR_RETURN(const std::optional<std::string> ledger, Get(store, kLedgerKey));
  if (ledger) {
    const Result<SessionLedger> decoded = DecodeLedger(*ledger);
    loaded.ledger_damage = decoded.status();
    if (decoded.ok()) loaded.ledger = *decoded;
  }

  std::map<uint64_t, Assembly*> by_serial;
  bool all_known = true;
  for (Assembly& assembly : assemblies) {
    all_known &= assembly.serial() > 0;
    by_serial.emplace(assembly.serial(), &assembly);
  }
  DurableBatch changes;
  const auto assembly_of = [&](std::string_view key) -> Assembly* {
    const auto found = by_serial.find(FromBigEndian(key.substr(1, 8)));
    if (found != by_serial.end() && found->first > 0) return found->second;
    if (all_known) changes.Delete(std::string(key));
    return nullptr;
  };
  RETURN_IF_ERROR(store.Scan("p", [&](std::string_view key, std::string_view value) {
    if (Assembly* assembly = assembly_of(key)) assembly->TakeProgress(value);
  }));
  RETURN_IF_ERROR(store.Scan("t", [&](std::string_view key, std::string_view value) {
    if (Assembly* assembly = assembly_of(key)) assembly->TakeChunk(key, value);
  }));
  loaded.garbage_count = changes.changes().size();
  if (loaded.garbage_count > 0) {
    LogWarning("sessions: " + std::to_string(loaded.garbage_count) +
               " records are of sessions that are not there, and go");
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> known_model, Get(store, kModelKey));
  const std::string record = ModelRecord(vocabulary, model);
  if (known_model != record) changes.Put(kModelKey, record);
  if (!changes.empty()) RETURN_IF_ERROR(store.Commit(changes, CommitSync::kDevice));
  for (Assembly& assembly : assemblies) loaded.sessions.push_back(std::move(assembly).Finish());
  RETURN_IF_ERROR(GoBackBeforeDamage(store, loaded));
  for (const auto& [damage, session] : loaded.sessions) {
    loaded.ledger.next_serial = std::max(loaded.ledger.next_serial, session.serial + 1);
    loaded.ledger.lived = std::max(loaded.ledger.lived, session.last_use_lived);
  }
  return loaded;
}

Result<std::optional<StoredSession>> LoadSession(const DurableStore& store, const std::string& id) {
  const std::string key = SettingsKey(id);
  ASSIGN_OR_RETURN(const std::optional<std::string> settings, Get(store, key));
  if (!settings) return std::optional<StoredSession>();
  Assembly assembly = Assembly::Of(key, *settings);
  if (const uint64_t serial = assembly.serial(); serial > 0) {
    ASSIGN_OR_RETURN(const std::optional<std::string> progress, Get(store, ProgressKey(serial)));
    if (progress) assembly.TakeProgress(*progress);
    RETURN_IF_ERROR(store.Scan(
        TokensPrefix(serial),
        [&](std::string_view chunk, std::string_view bytes) { assembly.TakeChunk(chunk, bytes); }));
  }
  return std::optional<StoredSession>(std::move(assembly).Finish());
}

void AddChange(uint64_t serial, const SessionChange& change, const Session* session,
               DurableBatch& batch) {
  if (session == nullptr) {
    batch.Delete(SettingsKey(change.id));
    batch.Delete(ProgressKey(serial));
    batch.DeleteRange(TokensPrefix(serial), TokensPrefix(serial + 1));
    return;
  }
  if (change.settings) batch.Put(SettingsKey(change.id), EncodeSettings(*session));
  batch.Put(ProgressKey(serial), EncodeProgress(ProgressOf(*session)));

  const std::span<const uint32_t> tokens = session->tokens;
  size_t begin = static_cast<size_t>(change.kept_tokens);
  if (change.kept_tokens < change.noted_tokens) {  // the chunk that was cut is written anew
    begin -= begin % kChunkTokens;
    batch.DeleteRange(ChunkKey(serial, begin / kChunkTokens), TokensPrefix(serial + 1));
  }
  while (begin < tokens.size()) {
    const size_t chunk = begin / kChunkTokens;
    const size_t end = std::min(tokens.size(), (chunk + 1) * kChunkTokens);
    std::string bytes = EncodeTokens(tokens.subspan(begin, end - begin));
    if (begin % kChunkTokens == 0) {
      batch.Put(ChunkKey(serial, chunk), std::move(bytes));
    } else {
      batch.Append(ChunkKey(serial, chunk), std::move(bytes));
    }
    begin = end;
  }
}

void AddLedger(const SessionLedger& ledger, DurableBatch& batch) {
  batch.Put(kLedgerKey, EncodeLedger(ledger));
}

}  // namespace cairn
