#include "engine/session_table.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "engine/message_text.h"
#include "engine/session_settings.h"

namespace cairn {
namespace {

using std::chrono::nanoseconds;

constexpr int32_t kPageSizeDefault = 100;
constexpr int32_t kPageSizeMax = 1000;
constexpr size_t kPageBytesMax = 2u << 20;  // half of what a client takes as one message by default
constexpr size_t kMintedIdBytes = 12;
// Room comes when sessions are deleted or expire, which is not a matter of milliseconds.
constexpr std::chrono::milliseconds kRetryDelay{10'000};
constexpr size_t kChecksumDigits = 8;

// A page token is a checksum and the id of the last session before the page, so it stays good
// whatever is created or deleted in between.
std::string PageToken(const std::string& last_id) {
  return DigestOf("page of sessions after " + last_id).ToHex().substr(0, kChecksumDigits) + last_id;
}

Result<std::string> ReadPageToken(const std::string& token) {
  const std::string last_id = token.substr(std::min(kChecksumDigits, token.size()));
  if (!last_id.empty() && PageToken(last_id) == token) return last_id;
  return InvalidField("page_token", "must come from the page before, is " + Quoted(token));
}

// What a session takes in a page at most: its own texts and lists, and everything else.
size_t ListedBytes(const Session& session) {
  const SamplingParams& sampling = session.settings.sampling;
  size_t bytes = 512 + session.settings.display_name.size();
  for (const auto& [key, value] : session.settings.annotations) {
    bytes += 16 + key.size() + value.size();
  }
  for (const std::string& stop : sampling.stop) bytes += 4 + stop.size();
  return bytes + 6 * sampling.stop_token_ids.size() + 16 * sampling.logit_bias.size();
}

Status NoSession(const std::string& id) {
  return NotFound("session " + Quoted(id) + " does not exist or has expired");
}

// Twelve letters and digits that are hard to confuse: 60 bits.
std::string MintId(uint64_t bits) {
  static constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz234567";
  std::string id;
  for (size_t i = 0; i < kMintedIdBytes; ++i, bits >>= 5) id += kAlphabet[bits & 31];
  return id;
}

// When the time to live of a session ends, as SessionTable::lived counts; nothing: it has none.
std::optional<nanoseconds> LifetimeEnd(const Session& session) {
  const auto* ttl = std::get_if<nanoseconds>(&session.settings.expiration);
  if (ttl == nullptr) return std::nullopt;
  return session.last_use_lived + *ttl;
}

Status ValidateTokenCount(int64_t token_count, const Session& session) {
  if (token_count >= 0 && token_count <= session.token_count()) return Status();
  return InvalidField("token_count", "must be in 0.." + std::to_string(session.token_count()) +
                                         ", is " + std::to_string(token_count));
}

}  // namespace

SessionTable::SessionTable(const EngineConfig& config, uint32_t vocabulary_size, const Clock& clock,
                           uint64_t seed, SessionChanges* changes)
    : config_(config),
      vocabulary_size_(vocabulary_size),
      clock_(clock),
      rng_(seed),
      changes_(changes),
      now_(clock.WallNow()),
      started_(clock.Now()),
      token_bound_(config.session_tokens_max),
      session_bound_(config.session_count_max) {}

void SessionTable::Continue(uint64_t next_serial, nanoseconds lived) {
  CHECK(sessions_.empty() && aside_.empty() && next_serial > 0);
  next_serial_ = next_serial;
  lived_before_ = lived_ = lived;
}

Status SessionTable::Restore(StoredSession stored) {
  Session& session = stored.session;
  CHECK(!sessions_.contains(session.id) && !aside_.contains(session.id));
  Status why = std::move(stored.damage);
  if (why.ok()) why = CheckFits(session);
  if (!why.ok()) {
    aside_.emplace(session.id, Aside{session.serial, why});
    return why;
  }
  CHECK(session.serial > 0 && session.serial < next_serial_);
  total_token_count_ += session.tokens.size();
  std::string id = session.id;
  const Session& stored_session =
      sessions_.emplace(std::move(id), std::move(session)).first->second;
  NoteExpiry(stored_session);
  order_.Insert(stored_session);
  token_bound_ = std::max(token_bound_, total_token_count_);
  session_bound_ = std::max(session_bound_, sessions_.size());
  return Status();
}

void SessionTable::Forget(const std::string& id) {
  aside_.erase(id);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  ForgetExpiry(found->second);
  order_.Erase(found->second);
  total_token_count_ -= found->second.tokens.size();
  sessions_.erase(found);
}

std::vector<std::string> SessionTable::ids() const {
  std::vector<std::string> ids;
  ids.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  return ids;
}

size_t SessionTable::WriteAgain(const std::string& id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return 0;
  if (changes_) changes_->ChangeAll(found->second);
  return found->second.tokens.size() * sizeof(uint32_t);
}

Result<const Session*> SessionTable::Create(const CreateSessionRequest& request) {
  RETURN_IF_ERROR(ValidateSettings(request.settings, vocabulary_size_, now_));
  RETURN_IF_ERROR(ValidateCacheSalt(request.cache_salt, "session.cache_salt"));
  Session session;
  ASSIGN_OR_RETURN(session.id, ClaimId(request.id));
  session.settings = request.settings;
  session.cache_salt = request.cache_salt;
  return Insert(std::move(session));
}

Result<const Session*> SessionTable::Fork(const ForkSessionRequest& request) {
  ASSIGN_OR_RETURN(Session* const parent, FindMutable(request.id));
  const int64_t token_count = request.token_count.value_or(parent->token_count());
  RETURN_IF_ERROR(ValidateTokenCount(token_count, *parent));
  RETURN_IF_ERROR(CheckTokensFit(static_cast<uint64_t>(token_count)));
  Session session;
  ASSIGN_OR_RETURN(session.id, ClaimId(request.new_id));
  session.settings = parent->settings;
  session.tokens.assign(parent->tokens.begin(), parent->tokens.begin() + token_count);
  session.token_digest = ExtendTokenDigest(kNoTokensDigest, session.tokens);
  session.computed_token_count = std::min(parent->computed_token_count, token_count);
  session.parent_id = parent->id;
  session.cache_salt = parent->cache_salt;
  MarkUsed(*parent);
  return Insert(std::move(session));
}

Result<const Session*> SessionTable::Find(const std::string& id) const {
  const auto position = sessions_.find(id);
  if (position != sessions_.end()) return &position->second;
  const auto aside = aside_.find(id);
  return aside == aside_.end() ? NoSession(id) : aside->second.why;
}

Result<SessionPage> SessionTable::List(const ListSessionsRequest& request) const {
  if (request.page_size < 0) {
    return InvalidField("page_size",
                        "must not be negative, is " + std::to_string(request.page_size));
  }
  auto next = sessions_.begin();
  if (!request.page_token.empty()) {
    ASSIGN_OR_RETURN(const std::string last_id, ReadPageToken(request.page_token));
    next = sessions_.upper_bound(last_id);
  }
  const int32_t wanted = request.page_size == 0 ? kPageSizeDefault : request.page_size;
  const auto count_max = static_cast<size_t>(std::min(wanted, kPageSizeMax));
  SessionPage page;
  size_t bytes = 0;
  for (; next != sessions_.end(); ++next) {
    bytes += ListedBytes(next->second);
    const bool is_full = page.sessions.size() == count_max || bytes > kPageBytesMax;
    if (is_full && !page.sessions.empty()) {
      page.next_page_token = PageToken(page.sessions.back().id);
      break;
    }
    page.sessions.push_back(Info(next->second));
  }
  return page;
}

Result<const Session*> SessionTable::Update(const UpdateSessionRequest& request) {
  ASSIGN_OR_RETURN(Session* const session, FindMutable(request.id));
  if (!request.etag.empty() && request.etag != session->etag()) {
    return Aborted("session " + Quoted(request.id) + " has changed: its etag is " +
                   Quoted(session->etag()) + ", the request's is " + Quoted(request.etag))
        .WithField("session.etag");
  }
  if (request.cache_salt && *request.cache_salt != session->cache_salt) {
    return InvalidField("session.cache_salt", "cannot be changed");
  }
  RETURN_IF_ERROR(ValidatePatch(request.patch, vocabulary_size_, now_));
  if (changes_) changes_->ChangeSettings(*session);
  session->update_time = MarkUsed(*session, request.patch);
  ++session->revision;
  return session;
}

Status SessionTable::Delete(const std::string& id) {
  if (const auto aside = aside_.find(id); aside != aside_.end()) {
    if (changes_) changes_->Remove(id, aside->second.serial);
    aside_.erase(aside);
    return Status();
  }
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  Erase(*session);
  return Status();
}

Result<const Session*> SessionTable::Truncate(const std::string& id, int64_t token_count) {
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  RETURN_IF_ERROR(ValidateTokenCount(token_count, *session));
  if (changes_) changes_->ChangeTokens(*session, token_count);
  total_token_count_ -= static_cast<uint64_t>(session->token_count() - token_count);
  order_.Change(*session, [&] { session->tokens.resize(static_cast<size_t>(token_count)); });
  session->token_digest = ExtendTokenDigest(kNoTokensDigest, session->tokens);
  session->computed_token_count = std::min(session->computed_token_count, token_count);
  session->update_time = MarkUsed(*session);
  return session;
}

Status SessionTable::CheckAppend(const std::string& id, uint64_t count,
                                 std::optional<int64_t> expected_token_count) const {
  ASSIGN_OR_RETURN(const Session* const session, Find(id));
  if (expected_token_count && *expected_token_count != session->token_count()) {
    return Aborted("session " + Quoted(id) + " holds " + std::to_string(session->token_count()) +
                   " tokens, expected_token_count is " + std::to_string(*expected_token_count))
        .WithField("expected_token_count");
  }
  if (count > config_.context_length - session->tokens.size()) {
    return InvalidField("content", "session " + Quoted(id) + " holds " +
                                       std::to_string(session->tokens.size()) + " tokens, and " +
                                       std::to_string(count) + " more are over the context of " +
                                       std::to_string(config_.context_length));
  }
  return CheckTokensFit(count);
}

Result<int64_t> SessionTable::Append(const std::string& id, std::span<const uint32_t> tokens,
                                     std::optional<int64_t> expected_token_count) {
  RETURN_IF_ERROR(CheckAppend(id, tokens.size(), expected_token_count));
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  for (const uint32_t token : tokens) CHECK(token < vocabulary_size_);  // refused at the door
  if (changes_) changes_->ChangeTokens(*session, session->token_count());
  order_.Append(*session, tokens);
  session->token_digest = ExtendTokenDigest(session->token_digest, tokens);
  total_token_count_ += tokens.size();
  session->update_time = MarkUsed(*session);
  return session->token_count();
}

Status SessionTable::MarkComputed(const std::string& id, int64_t token_count) {
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  CHECK(token_count >= 0 && token_count <= session->token_count());
  session->computed_token_count = std::max(session->computed_token_count, token_count);
  return Status();
}

Status SessionTable::Touch(const std::string& id) {
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  MarkUsed(*session);
  return Status();
}

std::vector<std::string> SessionTable::ExpireNow(
    const std::function<bool(const std::string& id)>& in_use) {
  now_ = clock_.WallNow();
  lived_ = std::max(lived_, lived_before_ + (clock_.Now() - started_));
  std::vector<std::string> expired;
  const auto expire = [&](std::string id) {
    Erase(sessions_.at(id));
    expired.push_back(std::move(id));
  };
  while (!moments_.empty() && moments_.begin()->first <= now_) expire(moments_.begin()->second);
  while (!lifetimes_.empty() && lifetimes_.begin()->first <= lived_) {
    const std::string id = lifetimes_.begin()->second;
    if (in_use(id)) {
      MarkUsed(sessions_.at(id));  // its time to live begins again now, so it leaves the front
    } else {
      expire(id);
    }
  }
  return expired;
}

SessionInfo SessionTable::Info(const Session& session) const {
  SessionInfo info;
  info.id = session.id;
  info.settings = session.settings;
  info.token_count = session.token_count();
  info.create_time = session.create_time;
  info.update_time = session.update_time;
  info.expire_time = ExpireTime(session);
  info.parent_id = session.parent_id;
  info.etag = session.etag();
  info.cache_salt = session.cache_salt;
  return info;
}

void SessionTable::CheckInvariants() const {
  uint64_t token_count = 0;
  size_t expiry_count = 0;
  CHECK(order_.size() == sessions_.size());
  order_.CheckInvariants();
  for (const auto& [id, session] : sessions_) {
    CHECK(id == session.id && ValidateSessionId(id, "session_id").ok());
    CHECK(session.tokens.size() <= config_.context_length);
    CHECK(session.computed_token_count >= 0);
    CHECK(session.computed_token_count <= session.token_count());
    token_count += session.tokens.size();
    CHECK(session.token_digest == ExtendTokenDigest(kNoTokensDigest, session.tokens));
    CHECK(session.serial > 0 && session.serial < next_serial_ && !aside_.contains(id));
    const auto* moment = std::get_if<Clock::Wall>(&session.settings.expiration);
    if (moment != nullptr) CHECK(moments_.contains({*moment, id}));
    const auto end = LifetimeEnd(session);
    if (end) CHECK(lifetimes_.contains({*end, id}));
    expiry_count += moment != nullptr || end.has_value();
  }
  CHECK(token_count == total_token_count_ && token_count <= token_bound_);
  CHECK(expiry_count == moments_.size() + lifetimes_.size());
  CHECK(sessions_.size() <= session_bound_);
}

Result<Session*> SessionTable::FindMutable(const std::string& id) {
  ASSIGN_OR_RETURN(const Session* const found, Find(id));
  return const_cast<Session*>(found);  // of a map that is ours to change
}

Result<std::string> SessionTable::ClaimId(const std::string& wanted) {
  if (!wanted.empty()) {
    RETURN_IF_ERROR(ValidateSessionId(wanted, "session_id"));
    if (sessions_.contains(wanted) || aside_.contains(wanted)) {
      return Status(Code::kAlreadyExists, "session " + Quoted(wanted) + " exists");
    }
  }
  if (sessions_.size() >= config_.session_count_max) {
    return ResourceExhausted("there are " + std::to_string(sessions_.size()) +
                             " sessions, as many as this server keeps")
        .WithRetryAfter(kRetryDelay);
  }
  std::string id = wanted;
  while (id.empty() || (wanted.empty() && (sessions_.contains(id) || aside_.contains(id)))) {
    id = MintId(rng_.Next());
  }
  return id;
}

Status SessionTable::CheckTokensFit(uint64_t count) const {
  const uint64_t left =
      config_.session_tokens_max - std::min(config_.session_tokens_max, total_token_count_);
  if (count <= left) return Status();
  return ResourceExhausted("all sessions hold " + std::to_string(total_token_count_) +
                           " tokens, and " + std::to_string(count) +
                           " more are over the limit of " +
                           std::to_string(config_.session_tokens_max))
      .WithRetryAfter(kRetryDelay);
}

// Whether this server can decode a stored session.
Status SessionTable::CheckFits(const Session& session) const {
  const std::string subject = "session " + Quoted(session.id) + " is set aside: ";
  if (session.tokens.size() > config_.context_length) {
    return FailedPrecondition(subject + "it holds " + std::to_string(session.tokens.size()) +
                              " tokens, over the context of " +
                              std::to_string(config_.context_length) + " (--context-length)");
  }
  const auto stranger = std::ranges::find_if(
      session.tokens, [this](uint32_t token) { return token >= vocabulary_size_; });
  if (stranger != session.tokens.end()) {
    return FailedPrecondition(subject + "it holds token " + std::to_string(*stranger) +
                              ", over the vocabulary of " + std::to_string(vocabulary_size_));
  }
  return Status();
}

const Session* SessionTable::Insert(Session session) {
  session.serial = next_serial_++;
  session.seed = rng_.Next();
  if (changes_) changes_->Create(session);
  total_token_count_ += session.tokens.size();
  const auto [position, inserted] = sessions_.try_emplace(session.id, std::move(session));
  CHECK(inserted);
  Session& stored = position->second;
  order_.Insert(stored);
  stored.create_time = stored.update_time = MarkUsed(stored);
  return &stored;
}

void SessionTable::Erase(const Session& session) {
  if (changes_) changes_->Remove(session.id, session.serial);
  Forget(std::string(session.id));
}

void SessionTable::ForgetExpiry(const Session& session) {
  if (const auto* moment = std::get_if<Clock::Wall>(&session.settings.expiration)) {
    moments_.erase({*moment, session.id});
  }
  if (const auto end = LifetimeEnd(session)) lifetimes_.erase({*end, session.id});
}

void SessionTable::NoteExpiry(const Session& session) {
  if (const auto* moment = std::get_if<Clock::Wall>(&session.settings.expiration)) {
    moments_.emplace(*moment, session.id);
  }
  if (const auto end = LifetimeEnd(session)) lifetimes_.emplace(*end, session.id);
}

std::optional<Clock::Wall> SessionTable::ExpireTime(const Session& session) const {
  const auto* moment = std::get_if<Clock::Wall>(&session.settings.expiration);
  if (moment != nullptr) return *moment;
  const auto end = LifetimeEnd(session);
  if (!end) return std::nullopt;
  return now_ + std::chrono::duration_cast<Clock::Wall::duration>(*end - lived_);
}

Clock::Wall SessionTable::MarkUsed(Session& session, const SessionPatch& patch) {
  ForgetExpiry(session);
  ApplyPatch(patch, session.settings);
  session.last_use_time = now_;
  session.last_use_lived = lived_;
  NoteExpiry(session);
  return session.last_use_time;
}

}  // namespace cairn
