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

Status ValidateTokenCount(int64_t token_count, const Session& session) {
  if (token_count >= 0 && token_count <= session.token_count()) return Status();
  return InvalidField("token_count", "must be in 0.." + std::to_string(session.token_count()) +
                                         ", is " + std::to_string(token_count));
}

}  // namespace

std::optional<Clock::Wall> Session::expire_time() const {
  return ExpireTime(settings.expiration, last_use_time);
}

std::string Session::etag() const { return std::to_string(revision); }

SessionTable::SessionTable(const EngineConfig& config, uint32_t vocabulary_size, const Clock& clock,
                           uint64_t seed)
    : config_(config),
      vocabulary_size_(vocabulary_size),
      clock_(clock),
      rng_(seed),
      now_(clock.WallNow()) {}

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
  session.computed_token_count = std::min(parent->computed_token_count, token_count);
  session.parent_id = parent->id;
  session.cache_salt = parent->cache_salt;
  MarkUsed(*parent);
  return Insert(std::move(session));
}

Result<const Session*> SessionTable::Find(const std::string& id) const {
  const auto position = sessions_.find(id);
  if (position == sessions_.end()) return NoSession(id);
  return &position->second;
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
  session->update_time = MarkUsed(*session, request.patch);
  ++session->revision;
  return session;
}

Status SessionTable::Delete(const std::string& id) {
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  Erase(*session);
  return Status();
}

Result<const Session*> SessionTable::Truncate(const std::string& id, int64_t token_count) {
  ASSIGN_OR_RETURN(Session* const session, FindMutable(id));
  RETURN_IF_ERROR(ValidateTokenCount(token_count, *session));
  total_token_count_ -= static_cast<uint64_t>(session->token_count() - token_count);
  session->tokens.resize(static_cast<size_t>(token_count));
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
  session->tokens.insert(session->tokens.end(), tokens.begin(), tokens.end());
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
  now_ = std::max(now_, clock_.WallNow());
  std::vector<std::string> expired;
  while (!expiries_.empty() && expiries_.begin()->first <= now_) {
    const std::string id = expiries_.begin()->second;
    Session& session = sessions_.at(id);
    const bool slides =
        std::holds_alternative<std::chrono::nanoseconds>(session.settings.expiration);
    if (slides && in_use(id)) {
      MarkUsed(session);  // its time to live begins again now, so it leaves the front
      continue;
    }
    expired.push_back(id);
    Erase(session);
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
  info.expire_time = session.expire_time();
  info.parent_id = session.parent_id;
  info.etag = session.etag();
  info.cache_salt = session.cache_salt;
  return info;
}

void SessionTable::CheckInvariants() const {
  uint64_t token_count = 0;
  size_t expiry_count = 0;
  for (const auto& [id, session] : sessions_) {
    CHECK(id == session.id && ValidateSessionId(id, "session_id").ok());
    CHECK(session.tokens.size() <= config_.context_length);
    CHECK(session.computed_token_count >= 0);
    CHECK(session.computed_token_count <= session.token_count());
    token_count += session.tokens.size();
    if (const auto expiry = session.expire_time()) {
      ++expiry_count;
      CHECK(expiries_.contains({*expiry, id}));
    }
  }
  CHECK(token_count == total_token_count_ && token_count <= config_.session_tokens_max);
  CHECK(expiry_count == expiries_.size());
  CHECK(sessions_.size() <= config_.session_count_max);
}

Result<Session*> SessionTable::FindMutable(const std::string& id) {
  const auto position = sessions_.find(id);
  if (position == sessions_.end()) return NoSession(id);
  return &position->second;
}

Result<std::string> SessionTable::ClaimId(const std::string& wanted) {
  if (!wanted.empty()) {
    RETURN_IF_ERROR(ValidateSessionId(wanted, "session_id"));
    if (sessions_.contains(wanted)) {
      return Status(Code::kAlreadyExists, "session " + Quoted(wanted) + " exists");
    }
  }
  if (sessions_.size() >= config_.session_count_max) {
    return ResourceExhausted("there are " + std::to_string(sessions_.size()) +
                             " sessions, as many as this server keeps")
        .WithRetryAfter(kRetryDelay);
  }
  std::string id = wanted;
  while (id.empty() || (wanted.empty() && sessions_.contains(id))) id = MintId(rng_.Next());
  return id;
}

Status SessionTable::CheckTokensFit(uint64_t count) const {
  if (count <= config_.session_tokens_max - total_token_count_) return Status();
  return ResourceExhausted("all sessions hold " + std::to_string(total_token_count_) +
                           " tokens, and " + std::to_string(count) +
                           " more are over the limit of " +
                           std::to_string(config_.session_tokens_max))
      .WithRetryAfter(kRetryDelay);
}

const Session* SessionTable::Insert(Session session) {
  session.seed = rng_.Next();
  total_token_count_ += session.tokens.size();
  const auto [position, inserted] = sessions_.try_emplace(session.id, std::move(session));
  CHECK(inserted);
  Session& stored = position->second;
  stored.create_time = stored.update_time = MarkUsed(stored);
  return &stored;
}

void SessionTable::Erase(const Session& session) {
  ForgetExpiry(session);
  total_token_count_ -= session.tokens.size();
  sessions_.erase(sessions_.find(session.id));
}

void SessionTable::ForgetExpiry(const Session& session) {
  if (const auto expiry = session.expire_time()) expiries_.erase({*expiry, session.id});
}

Clock::Wall SessionTable::MarkUsed(Session& session, const SessionPatch& patch) {
  ForgetExpiry(session);
  ApplyPatch(patch, session.settings);
  session.last_use_time = now_;
  if (const auto expiry = session.expire_time()) expiries_.emplace(*expiry, session.id);
  return session.last_use_time;
}

}  // namespace cairn
