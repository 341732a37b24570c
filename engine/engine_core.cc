#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/message_text.h"
#include "engine/session_settings.h"

namespace cairn {
namespace {

int64_t* TokensIn(Residency& residency, Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return &residency.device_tokens;
    case Tier::kHost:
      return &residency.host_tokens;
    case Tier::kDisk:
      return &residency.disk_tokens;
    case Tier::kRemote:
      return &residency.remote_tokens;
    case Tier::kAbsent:
      return nullptr;
  }
  return nullptr;
}

// What no tier has, of `token_count` tokens.
void SetRest(Residency& residency, size_t token_count, uint32_t block_tokens) {
  residency.tail_tokens = static_cast<int64_t>(token_count % block_tokens);
  residency.absent_tokens = static_cast<int64_t>(token_count) - residency.device_tokens -
                            residency.host_tokens - residency.disk_tokens -
                            residency.remote_tokens - residency.tail_tokens;
}

}  // namespace

EngineCore::EngineCore(EngineParts parts, const EngineConfig& config, const Clock& clock,
                       uint64_t seed)
    : parts_(std::move(parts)),
      config_(config),
      clock_(clock),
      encoder_(*parts_.tokenizer, parts_.chat_template, config.context_length),
      sessions_(config, parts_.model->config().vocabulary_size, clock, seed,
                parts_.journal ? &parts_.journal->changes() : nullptr),
      runner_(*parts_.model, *parts_.blocks, *parts_.restores, sessions_, *parts_.tokenizer, config,
              clock, parts_.trace.get(), parts_.journal.get()),
      rng_(MixBits(seed)) {
  RestoreSessions();
}

BlockKey EngineCore::RootFor(const std::string& cache_salt) const {
  return RootKey(parts_.fingerprint, parts_.blocks->layout().Id(), cache_salt);
}

Residency EngineCore::ResidencyOf(const BlockKey& root, std::span<const uint32_t> tokens) const {
  Residency residency;
  const uint32_t block_tokens = parts_.blocks->layout().block_tokens;
  for (const Tier tier : parts_.blocks->Locate(root, tokens)) {
    if (int64_t* count = TokensIn(residency, tier)) *count += block_tokens;
  }
  SetRest(residency, tokens.size(), block_tokens);
  return residency;
}

SessionInfo EngineCore::InfoOf(const Session& session) const {
  SessionInfo info = sessions_.Info(session);
  const Sequence* sequence = runner_.FindBySession(session.id);
  if (sequence == nullptr || sequence->phase != Phase::kRunning) {
    info.residency = ResidencyOf(RootFor(session.cache_salt), session.tokens);
    info.state = sequence == nullptr       ? SessionState::kIdle
                 : sequence->is_admitted() ? SessionState::kRestoring
                                           : SessionState::kQueued;
    return info;
  }
  // What it computes is not shared block by block yet, so its own count is the better one.
  for (const PositionRange& run :
       sequence->blocks->AllMissingRuns(session.tokens.size(), UINT32_MAX)) {
    info.residency.absent_tokens += run.count;
  }
  info.residency.host_tokens = std::min<int64_t>(
      sequence->blocks->host_token_count(), session.token_count() - info.residency.absent_tokens);
  info.residency.device_tokens =
      session.token_count() - info.residency.absent_tokens - info.residency.host_tokens;
  info.state = sequence->sink == nullptr ? SessionState::kRestoring : SessionState::kDecoding;
  return info;
}

void EngineCore::ExpireSessions() {
  const auto in_use = [this](const std::string& id) {
    return runner_.FindBySession(id) != nullptr;
  };
  for (const std::string& id : sessions_.ExpireNow(in_use)) {
    runner_.Unpin(id);
    runner_.ForgetRestore(id);
    if (const Sequence* sequence = runner_.FindBySession(id)) {
      runner_.Cancel(sequence->id, NotFound("session " + Quoted(id) + " has expired"));
    }
  }
}

Status EngineCore::ClaimSession(const std::string& id) {
  const Sequence* sequence = runner_.FindBySession(id);
  if (sequence == nullptr) return Status();
  if (sequence->sink == nullptr) {
    runner_.Cancel(sequence->id, Status(Code::kCancelled, "the session is wanted"));
    return Status();
  }
  return Aborted("session " + Quoted(id) + " is being decoded by another stream");
}

Result<SessionInfo> EngineCore::CreateSession(const CreateSessionRequest& request,
                                              EncodedContent content) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Create(request));
  const std::vector<uint32_t> tokens = encoder_.Resolve(std::move(content), {});
  if (!tokens.empty()) {
    const Result<int64_t> count = sessions_.Append(session->id, tokens, std::nullopt);
    if (!count.ok()) {
      CHECK(sessions_.Delete(session->id).ok());
      return count.status();
    }
  }
  return InfoOf(*session);
}

Result<SessionInfo> EngineCore::GetSession(const std::string& id) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Find(id));
  return InfoOf(*session);
}

Result<SessionPage> EngineCore::ListSessions(const ListSessionsRequest& request) {
  ASSIGN_OR_RETURN(SessionPage page, sessions_.List(request));
  for (SessionInfo& info : page.sessions) {
    const Result<const Session*> session = sessions_.Find(info.id);
    if (session.ok()) info = InfoOf(**session);
  }
  return page;
}

Result<SessionInfo> EngineCore::UpdateSession(const UpdateSessionRequest& request) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Update(request));
  if (!session->settings.pinned) runner_.Unpin(session->id);
  return InfoOf(*session);
}

Result<Done> EngineCore::DeleteSession(const std::string& id) {
  if (const Sequence* sequence = runner_.FindBySession(id)) {
    runner_.Cancel(sequence->id, Aborted("session " + Quoted(id) + " was deleted"));
  }
  const Result<const Session*> found = sessions_.Find(id);
  if (!found.ok()) {  // unknown, or set aside since it is damaged
    RETURN_IF_ERROR(sessions_.Delete(id));
    return Done();
  }
  const BlockKey root = RootFor((*found)->cache_salt);
  const std::vector<uint32_t> tokens = (*found)->tokens;
  const size_t shared_count = sessions_.SharedPrefix(**found);
  RETURN_IF_ERROR(sessions_.Delete(id));
  runner_.Unpin(id);
  runner_.ForgetRestore(id);
  parts_.blocks->DropOwn(
      root, tokens, static_cast<uint32_t>(shared_count / parts_.blocks->layout().block_tokens));
  return Done();
}

Result<SessionInfo> EngineCore::ForkSession(const ForkSessionRequest& request) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Fork(request));
  return InfoOf(*session);
}

Result<SessionInfo> EngineCore::TruncateSession(const std::string& id, int64_t token_count) {
  RETURN_IF_ERROR(sessions_.Find(id).status());
  RETURN_IF_ERROR(ClaimSession(id));
  ASSIGN_OR_RETURN(const Session* session, sessions_.Truncate(id, token_count));
  runner_.Unpin(id);
  return InfoOf(*session);
}

Result<AppendResult> EngineCore::AppendContent(const AppendRequest& request,
                                               EncodedContent content) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Find(request.id));
  if (content.empty()) return InvalidField("content", "is empty");
  RETURN_IF_ERROR(ClaimSession(request.id));
  const std::vector<uint32_t> tokens = encoder_.Resolve(std::move(content), session->tokens);
  ASSIGN_OR_RETURN(const int64_t count,
                   sessions_.Append(request.id, tokens, request.expected_token_count));
  return AppendResult{.token_count = count,
                      .appended_token_count = static_cast<int64_t>(tokens.size())};
}

Result<TokenRange> EngineCore::ReadTokens(const std::string& id, int64_t start_position,
                                          int64_t token_count) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Find(id));
  if (start_position < 0 || start_position > session->token_count()) {
    return InvalidField("start_position", "must be in 0.." +
                                              std::to_string(session->token_count()) + ", is " +
                                              std::to_string(start_position));
  }
  if (token_count < 0) {
    return InvalidField("token_count", "must not be negative, is " + std::to_string(token_count));
  }
  const std::span<const uint32_t> tokens = session->tokens;
  const size_t begin = static_cast<size_t>(start_position);
  const size_t left = tokens.size() - begin;
  const size_t count = token_count == 0 ? left : std::min<size_t>(left, token_count);
  Detokenizer text(*parts_.tokenizer);
  text.Prime(tokens.first(begin));
  TokenRange range{.position = start_position, .end = session->token_count()};
  for (const uint32_t token : tokens.subspan(begin, count)) {
    range.token_ids.push_back(token);
    range.text += text.Push(token);
  }
  // Within the session the next range goes on with a character that this one cuts.
  if (begin + count == tokens.size()) range.text += text.Flush();
  return range;
}

void EngineCore::SuspendSession(const std::string& id, Tier tier, Reply<SessionInfo> reply) {
  const Status begun = BeginSuspend(id, tier);
  if (!begun.ok()) return Answer<SessionInfo>(id, reply, begun);
  const Session& session = **sessions_.Find(id);
  parts_.blocks->Suspend(
      RootFor(session.cache_salt), session.tokens, tier,
      [this, id, reply = std::move(reply)] { Answer(id, reply, GetSession(id)); });
}

Status EngineCore::BeginSuspend(const std::string& id, Tier tier) {
  RETURN_IF_ERROR(sessions_.Find(id).status());
  if (tier != Tier::kHost && tier != Tier::kDisk && tier != Tier::kAbsent) {
    return InvalidField("tier", "must be TIER_HOST, TIER_DISK or TIER_ABSENT");
  }
  const bool has_disk = parts_.blocks->disk_stats().has_value();
  const bool has_host = parts_.blocks->stats().host_capacity > 0;
  if (tier != Tier::kAbsent && !has_disk && !(tier == Tier::kHost && has_host)) {
    const std::string host = tier == Tier::kHost ? "no host tier (--host-memory) and " : "";
    return FailedPrecondition(
        "the server has " + host +
        "no disk tier (--disk-dir) for the blocks to go to; TIER_ABSENT drops "
        "them");
  }
  RETURN_IF_ERROR(ClaimSession(id));
  runner_.Unpin(id);
  return Status();
}

Result<SessionInfo> EngineCore::PrefetchSession(const std::string& id, SequenceId sequence_id) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Find(id));
  if (runner_.FindBySession(id) != nullptr || session->tokens.empty()) return InfoOf(*session);
  CHECK(sessions_.Touch(id).ok());
  auto sequence =
      NewSequence({.id = sequence_id, .received = clock_.Now()}, session->tokens, {}, 0);
  sequence->session_id = id;
  sequence->priority = session->settings.priority;
  sequence->root = RootFor(session->cache_salt);
  sequence->computed_before = static_cast<size_t>(session->computed_token_count);
  runner_.Start(std::move(sequence));
  return InfoOf(*session);
}

Result<Residency> EngineCore::LookupPrefix(EncodedContent content, const std::string& cache_salt) {
  if (content.empty()) return InvalidField("content", "is empty");
  RETURN_IF_ERROR(ValidateCacheSalt(cache_salt, "cache_salt"));
  const std::vector<uint32_t> tokens = encoder_.Resolve(std::move(content), {});
  const uint32_t block_tokens = parts_.blocks->layout().block_tokens;
  Residency residency;
  for (const Tier tier : parts_.blocks->Locate(RootFor(cache_salt), tokens)) {
    int64_t* const count = TokensIn(residency, tier);
    if (count == nullptr) break;  // a prefix ends at the first hole
    *count += block_tokens;
  }
  SetRest(residency, tokens.size(), block_tokens);
  return residency;
}

Result<RestoreReport> EngineCore::ExplainRestore(const ExplainRequest& request) {
  ASSIGN_OR_RETURN(const Session* session, sessions_.Find(request.id));
  if (!request.last) {
    return runner_.ExplainNow(RootFor(session->cache_salt), session->tokens,
                              static_cast<size_t>(session->computed_token_count));
  }
  if (const RestoreReport* report = runner_.restore_log().Find(request.id)) return *report;
  return FailedPrecondition("no restore of session " + Quoted(request.id) +
                            " is remembered: since the server started nothing of it had to come "
                            "back, or " +
                            std::to_string(RestoreLog::kReportsMax) + " others have since");
}

Result<EngineStats> EngineCore::GetStats() {
  const RunnerCounts& counts = runner_.counts();
  EngineStats stats;
  AddTierStats(stats);
  for (TierStats& tier : stats.tiers) tier.loads = parts_.blocks->LoadPredictions(tier.tier);
  stats.session_count = static_cast<int64_t>(sessions_.session_count());
  stats.running_count = static_cast<int64_t>(runner_.running_count());
  stats.waiting_count = static_cast<int64_t>(runner_.waiting_count());
  stats.blocks_recomputed = counts.recomputed_tokens / parts_.blocks->layout().block_tokens;
  stats.preemptions = counts.preemptions;
  stats.steps = counts.steps;
  stats.step_time = counts.step_time;
  stats.forward_time = counts.forward_time;
  stats.restores = runner_.restore_log().counts();
  if (parts_.journal != nullptr) {
    const JournalCounts journal = parts_.journal->counts();
    stats.session_commits = static_cast<int64_t>(journal.commits);
    stats.session_commits_failed = static_cast<int64_t>(journal.failed_commits);
  }
  return stats;
}

Result<Done> EngineCore::ClearCache(std::optional<Tier> tier) {
  parts_.blocks->Clear(tier.value_or(Tier::kAbsent));
  return Done();
}

void EngineCore::AddTierStats(EngineStats& stats) const {
  const BlockStoreStats blocks = parts_.blocks->stats();
  const int64_t block_bytes = static_cast<int64_t>(blocks.block_bytes);
  stats.blocks_reloaded = static_cast<int64_t>(blocks.promotions);
  stats.tiers.push_back(
      {.tier = Tier::kDevice,
       .capacity_blocks = blocks.device_capacity,
       .used_blocks = blocks.device_used,
       .held_blocks = int64_t{blocks.filling} + blocks.held_hot,
       .evictions = static_cast<int64_t>(blocks.evictions - blocks.host_evictions)});
  if (blocks.host_capacity > 0) {
    stats.tiers.push_back({.tier = Tier::kHost,
                           .capacity_blocks = blocks.host_capacity,
                           .used_blocks = blocks.host_used,
                           .bytes_read = static_cast<int64_t>(blocks.promotions) * block_bytes,
                           .bytes_written = static_cast<int64_t>(blocks.demotions) * block_bytes,
                           .evictions = static_cast<int64_t>(blocks.host_evictions)});
  }
  const std::optional<DiskTierStats> disk = parts_.blocks->disk_stats();
  if (!disk) return;
  const auto record_bytes = static_cast<int64_t>(disk->store.record_bytes);
  const std::chrono::duration<double> load_seconds = disk->load_time;
  stats.tiers.push_back({.tier = Tier::kDisk,
                         .capacity_blocks = static_cast<int64_t>(disk->capacity_max),
                         .used_blocks = static_cast<int64_t>(disk->records),
                         .bytes_read = static_cast<int64_t>(disk->store.bytes_read),
                         .bytes_written = static_cast<int64_t>(disk->store.bytes_written),
                         .evictions = static_cast<int64_t>(disk->evictions),
                         .bandwidth = load_seconds.count() > 0
                                          ? static_cast<double>(record_bytes) / load_seconds.count()
                                          : 0,
                         .latency = disk->load_time});
  stats.blocks_reloaded += static_cast<int64_t>(disk->loads);
  stats.blocks_corrupt = static_cast<int64_t>(disk->corrupt);
  stats.segments_foreign = static_cast<int64_t>(disk->store.foreign_segments);
}

Status EngineCore::CheckStream(uint32_t max_tokens, const SamplingParams& sampling) const {
  if (max_tokens > config_.context_length) {
    return InvalidField("max_tokens", "must be at most " + std::to_string(config_.context_length) +
                                          ", the context length, is " + std::to_string(max_tokens));
  }
  RETURN_IF_ERROR(ValidateSampling(sampling, parts_.model->config().vocabulary_size, "sampling."));
  if (runner_.sequence_count() >= size_t{config_.waiting_max} + config_.concurrent_max) {
    return std::move(ResourceExhausted("the queue of " + std::to_string(config_.waiting_max) +
                                       " waiting streams is full"))
        .WithRetryAfter(std::chrono::seconds(1));
  }
  return Status();
}

uint32_t EngineCore::MaxTokens(uint32_t asked) const {
  return asked == 0 ? config_.max_tokens_default : asked;
}

std::unique_ptr<Sequence> EngineCore::NewSequence(const StreamStart& start,
                                                  std::vector<uint32_t> tokens,
                                                  const SamplingParams& sampling,
                                                  uint64_t seed) const {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = start.id;
  sequence->sink = start.sink;
  sequence->received = start.received;
  sequence->tokens = std::move(tokens);
  sequence->released_count = sequence->tokens.size();
  sequence->end_count = sequence->tokens.size();
  sequence->sampling = sampling;
  sequence->seed = seed;
  if (NeedsTokenCounts(sampling)) sequence->counts.emplace(sequence->tokens);
  sequence->output.emplace(*parts_.tokenizer, sampling.stop);
  sequence->output->Prime(sequence->tokens);
  return sequence;
}

void EngineCore::Decode(const StreamStart& start, const DecodeRequest& request,
                        EncodedContent content) {
  const Status started = StartDecode(start, request, std::move(content));
  if (!started.ok()) Refuse(start, request.id, started);
}

Status EngineCore::StartDecode(const StreamStart& start, const DecodeRequest& request,
                               EncodedContent content) {
  RETURN_IF_ERROR(CanChangeSessions());
  ASSIGN_OR_RETURN(const Session* session, sessions_.Find(request.id));
  RETURN_IF_ERROR(CheckStream(request.max_tokens, request.sampling));
  RETURN_IF_ERROR(ClaimSession(request.id));
  const std::vector<uint32_t> added = encoder_.Resolve(std::move(content), session->tokens);
  const int64_t count = session->token_count() + static_cast<int64_t>(added.size());
  if (count == 0) return InvalidField("content", "is empty, and so is the session");
  const int64_t start_position = request.start_position.value_or(count);
  if (start_position < 0 || start_position > count) {
    return InvalidField("start_position", "must be in 0.." + std::to_string(count) + ", is " +
                                              std::to_string(start_position));
  }
  RETURN_IF_ERROR(sessions_.CheckAppend(request.id, added.size(), request.expected_token_count));
  CHECK(sessions_.Touch(request.id).ok());

  std::vector<uint32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  tokens.insert(tokens.end(), session->tokens.begin(), session->tokens.end());
  tokens.insert(tokens.end(), added.begin(), added.end());
  const SamplingParams sampling = Overlay(session->settings.sampling, request.sampling);
  auto sequence =
      NewSequence(start, std::move(tokens), sampling, sampling.seed.value_or(session->seed));
  sequence->session_id = request.id;
  sequence->content_count = added.size();
  sequence->priority = session->settings.priority;
  sequence->root = RootFor(session->cache_salt);
  sequence->computed_before = static_cast<size_t>(session->computed_token_count);
  sequence->end_count =
      std::min<size_t>(start_position + MaxTokens(request.max_tokens), config_.context_length);
  if (start_position < count || sequence->end_count <= sequence->tokens.size()) {
    sequence->phase = Phase::kReplaying;
    sequence->replay_next = static_cast<size_t>(start_position);
    sequence->replay_end = std::min(sequence->tokens.size(), sequence->end_count);
    sequence->replay_text.emplace(*parts_.tokenizer);
    sequence->replay_text->Prime(std::span(sequence->tokens).first(sequence->replay_next));
  }
  runner_.Start(std::move(sequence));
  return Status();
}

void EngineCore::Generate(const StreamStart& start, const GenerateRequest& request,
                          EncodedContent content) {
  const Status started = StartGenerate(start, request, std::move(content));
  if (!started.ok()) Refuse(start, SessionJournal::kNoSession, started);
}

Status EngineCore::StartGenerate(const StreamStart& start, const GenerateRequest& request,
                                 EncodedContent content) {
  RETURN_IF_ERROR(CheckStream(request.max_tokens, request.sampling));
  RETURN_IF_ERROR(ValidatePriority(request.priority, "priority"));
  RETURN_IF_ERROR(ValidateCacheSalt(request.cache_salt, "cache_salt"));
  std::vector<uint32_t> tokens = encoder_.Resolve(std::move(content), {});
  if (tokens.empty()) return InvalidField("content", "is empty");
  if (tokens.size() >= config_.context_length) {
    return InvalidField("content", "has " + std::to_string(tokens.size()) +
                                       " tokens, over the context of " +
                                       std::to_string(config_.context_length));
  }
  auto sequence = NewSequence(start, std::move(tokens), request.sampling,
                              request.sampling.seed.value_or(rng_.Next()));
  sequence->priority = request.priority;
  sequence->root = RootFor(request.cache_salt);
  sequence->end_count = std::min<size_t>(sequence->tokens.size() + MaxTokens(request.max_tokens),
                                         config_.context_length);
  runner_.Start(std::move(sequence));
  return Status();
}

}  // namespace cairn
