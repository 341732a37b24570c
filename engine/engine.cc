#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"

namespace cairn {
namespace {

constexpr auto kIdleWait = std::chrono::seconds(1);           // then expired sessions go
constexpr auto kBlockedWait = std::chrono::milliseconds(20);  // work, but none that can go on
constexpr auto kCopyWait = std::chrono::microseconds(100);    // copies end without a word
constexpr size_t kLoggedStatesMax = 100;  // of sequences, when a step does not end

// Commands of the engine itself (cancel, resume) are never refused: a stream has at most one of
// each under way, so so many more places are enough.
size_t QueuePlaces(const EngineConfig& config) {
  const size_t streams =
      size_t{config.command_queue_max} + config.waiting_max + config.concurrent_max;
  return config.command_queue_max + 2 * streams + 2;
}

uint64_t EntropySeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) ^ device();
}

}  // namespace

Engine::Engine(EngineParts parts, const EngineConfig& config, const Clock& clock)
    : config_(config),
      clock_(clock),
      model_info_(parts.model_info),
      core_(std::make_unique<EngineCore>(std::move(parts), config_, clock, EntropySeed())),
      commands_(QueuePlaces(config)) {
  CHECK(config.Validate().ok());
  last_progress_ = clock.Now().time_since_epoch();
  if (core_->wake() != nullptr) core_->wake()->Connect([this] { commands_.Wake(); });
  thread_ = std::thread([this] { Run(); });
  watchdog_ = std::thread([this] { Watch(); });
}

Engine::~Engine() { Close(); }

void Engine::Close() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  commands_.Close();
  stop_.release();
  thread_.join();
  watchdog_.join();
  if (core_->wake() != nullptr) core_->wake()->Connect(nullptr);
}

std::chrono::nanoseconds Engine::DiskSilence() const { return core_->DiskSilence(); }

size_t Engine::UnwrittenSessions() const { return core_->UnwrittenCount(); }

bool Engine::Post(Command command) {
  if (draining_ || is_lost_ || commands_.size() >= config_.command_queue_max) return false;
  return commands_.Push(std::move(command));
}

void Engine::PostOwn(Command command) {
  if (!commands_.Push(std::move(command))) CHECK(stopping_);
}

Status Engine::Refusal() const {
  if (is_lost_) return lost_;
  if (draining_ || stopping_) return Unavailable("the server is shutting down");
  return std::move(ResourceExhausted("the engine's queue of " +
                                     std::to_string(config_.command_queue_max) +
                                     " requests is full"))
      .WithRetryAfter(std::chrono::milliseconds(200));
}

// Queues `command`, a function of EngineCore& to Result<T>, and answers with its result, which is
// about `subject` (EngineCore::Answer).
template <class T, class F>
void Engine::Ask(std::string subject, Reply<T> reply, F command) {
  auto shared_reply = std::make_shared<Reply<T>>(std::move(reply));
  auto shared_command = std::make_shared<F>(std::move(command));
  const bool taken =
      Post([subject = std::move(subject), shared_reply, shared_command](EngineCore& core) {
        core.Answer(subject, *shared_reply, (*shared_command)(core));
      });
  if (!taken) (*shared_reply)(Refusal());
}

// The same, for a command that changes sessions.
template <class T, class F>
void Engine::Change(std::string subject, Reply<T> reply, F command) {
  Ask<T>(std::move(subject), std::move(reply),
         [command = std::move(command)](EngineCore& core) mutable -> Result<T> {
           RETURN_IF_ERROR(core.CanChangeSessions());
           return command(core);
         });
}

void Engine::CreateSession(CreateSessionRequest request, Reply<SessionInfo> reply) {
  Result<EncodedContent> content = core_->encoder().Encode(request.content);
  if (!content.ok()) return reply(content.status());
  request.content = std::monostate();  // it lives on as ids
  // An id that is to be minted is not known yet.
  Change<SessionInfo>(
      SessionJournal::kAnySession, std::move(reply),
      [request = std::move(request), content = *std::move(content)](EngineCore& core) mutable {
        return core.CreateSession(request, std::move(content));
      });
}

void Engine::GetSession(SessionRef session, Reply<SessionInfo> reply) {
  std::string subject = session.id;
  Ask<SessionInfo>(
      std::move(subject), std::move(reply),
      [session = std::move(session)](EngineCore& core) { return core.GetSession(session.id); });
}

void Engine::ListSessions(ListSessionsRequest request, Reply<SessionPage> reply) {
  Ask<SessionPage>(
      SessionJournal::kAnySession, std::move(reply),
      [request = std::move(request)](EngineCore& core) { return core.ListSessions(request); });
}

void Engine::UpdateSession(UpdateSessionRequest request, Reply<SessionInfo> reply) {
  std::string subject = request.id;
  Change<SessionInfo>(
      std::move(subject), std::move(reply),
      [request = std::move(request)](EngineCore& core) { return core.UpdateSession(request); });
}

void Engine::DeleteSession(SessionRef session, Reply<Done> reply) {
  std::string subject = session.id;
  Change<Done>(
      std::move(subject), std::move(reply),
      [session = std::move(session)](EngineCore& core) { return core.DeleteSession(session.id); });
}

void Engine::ForkSession(ForkSessionRequest request, Reply<SessionInfo> reply) {
  Change<SessionInfo>(
      SessionJournal::kAnySession, std::move(reply),
      [request = std::move(request)](EngineCore& core) { return core.ForkSession(request); });
}

void Engine::TruncateSession(TruncateRequest request, Reply<SessionInfo> reply) {
  std::string subject = request.id;
  Change<SessionInfo>(std::move(subject), std::move(reply),
                      [request = std::move(request)](EngineCore& core) {
                        return core.TruncateSession(request.id, request.token_count);
                      });
}

void Engine::AppendContent(AppendRequest request, Reply<AppendResult> reply) {
  Result<EncodedContent> content = core_->encoder().Encode(request.content);
  if (!content.ok()) return reply(content.status());
  request.content = std::monostate();
  std::string subject = request.id;
  Change<AppendResult>(
      std::move(subject), std::move(reply),
      [request = std::move(request), content = *std::move(content)](EngineCore& core) mutable {
        return core.AppendContent(request, std::move(content));
      });
}

void Engine::ReadTokens(std::string id, int64_t start_position, int64_t token_count,
                        Reply<TokenRange> reply) {
  std::string subject = id;
  Ask<TokenRange>(std::move(subject), std::move(reply),
                  [id = std::move(id), start_position, token_count](EngineCore& core) {
                    return core.ReadTokens(id, start_position, token_count);
                  });
}

void Engine::SuspendSession(SuspendRequest request, Reply<SessionInfo> reply) {
  auto shared_reply = std::make_shared<Reply<SessionInfo>>(std::move(reply));
  const bool taken = Post([shared_reply, request = std::move(request)](EngineCore& core) {
    core.SuspendSession(request.id, request.tier, *shared_reply);
  });
  if (!taken) (*shared_reply)(Refusal());
}

void Engine::PrefetchSession(SessionRef session, Reply<SessionInfo> reply) {
  const StreamId stream(next_stream_++);
  std::string subject = session.id;
  Ask<SessionInfo>(std::move(subject), std::move(reply),
                   [session = std::move(session), stream](EngineCore& core) {
                     return core.PrefetchSession(session.id, stream);
                   });
}

StreamId Engine::Decode(DecodeRequest request, std::shared_ptr<TokenSink> sink) {
  const Clock::Monotonic received = clock_.Now();
  return StartStream(std::move(request), std::move(sink),
                     [received](EngineCore& core, StreamId id, std::shared_ptr<TokenSink> to,
                                const DecodeRequest& what, EncodedContent content) {
                       core.Decode({id, std::move(to), received}, what, std::move(content));
                     });
}

StreamId Engine::Generate(GenerateRequest request, std::shared_ptr<TokenSink> sink) {
  const Clock::Monotonic received = clock_.Now();
  return StartStream(std::move(request), std::move(sink),
                     [received](EngineCore& core, StreamId id, std::shared_ptr<TokenSink> to,
                                const GenerateRequest& what, EncodedContent content) {
                       core.Generate({id, std::move(to), received}, what, std::move(content));
                     });
}

template <class Request, class F>
StreamId Engine::StartStream(Request request, std::shared_ptr<TokenSink> sink, F start) {
  const StreamId id(next_stream_++);
  Result<EncodedContent> content = core_->encoder().Encode(request.content);
  if (!content.ok()) {
    sink->OnEnd({.status = content.status()});
    return id;
  }
  request.content = std::monostate();
  auto what =
      std::make_shared<std::pair<Request, EncodedContent>>(std::move(request), *std::move(content));
  const bool taken = Post([this, id, sink, what, start](EngineCore& core) {
    // It may have passed Post just before Drain, and be here just after "no stream is left".
    if (!takes_streams_) return sink->OnEnd({.status = Refusal()});
    start(core, id, sink, what->first, std::move(what->second));
  });
  if (!taken) sink->OnEnd({.status = Refusal()});
  return id;
}

void Engine::CancelStream(StreamId stream, Status why) {
  PostOwn([stream, why = std::move(why)](EngineCore& core) { core.CancelStream(stream, why); });
}

void Engine::ResumeStream(StreamId stream) {
  PostOwn([stream](EngineCore& core) { core.ResumeStream(stream); });
}

Result<std::vector<uint32_t>> Engine::Tokenize(const Content& content) const {
  ASSIGN_OR_RETURN(EncodedContent encoded, core_->encoder().Encode(content));
  return core_->encoder().Resolve(std::move(encoded), {});
}

Result<std::string> Engine::Detokenize(const std::vector<uint32_t>& ids) const {
  const Tokenizer& tokenizer = core_->tokenizer();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= tokenizer.size()) {
      return InvalidField("ids[" + std::to_string(i) + "]",
                          "must be below the vocabulary size of " +
                              std::to_string(tokenizer.size()) + ", is " + std::to_string(ids[i]));
    }
  }
  return cairn::Detokenize(tokenizer, ids);
}

void Engine::LookupPrefix(const Content& content, std::string cache_salt, Reply<Residency> reply) {
  Result<EncodedContent> encoded = core_->encoder().Encode(content);
  if (!encoded.ok()) return reply(encoded.status());
  Ask<Residency>(
      SessionJournal::kNoSession, std::move(reply),
      [cache_salt = std::move(cache_salt), encoded = *std::move(encoded)](
          EngineCore& core) mutable { return core.LookupPrefix(std::move(encoded), cache_salt); });
}

void Engine::ExplainRestore(ExplainRequest request, Reply<RestoreReport> reply) {
  std::string subject = request.id;
  Ask<RestoreReport>(
      std::move(subject), std::move(reply),
      [request = std::move(request)](EngineCore& core) { return core.ExplainRestore(request); });
}

void Engine::GetStats(Reply<EngineStats> reply) {
  Ask<EngineStats>(SessionJournal::kNoSession, std::move(reply),
                   [](EngineCore& core) { return core.GetStats(); });
}

void Engine::ClearCache(std::optional<Tier> tier, Reply<Done> reply) {
  Ask<Done>(SessionJournal::kNoSession, std::move(reply),
            [tier](EngineCore& core) { return core.ClearCache(tier); });
}

void Engine::Drain(std::function<void()> drained) {
  draining_ = true;
  PostOwn([this, drained = std::move(drained)](EngineCore&) {
    takes_streams_ = false;
    on_drained_ = drained;
  });
}

void Engine::SpillIdle(std::function<void()> done) {
  PostOwn([done = std::move(done)](EngineCore& core) { core.SpillIdle(done); });
}

void Engine::EndStreams() {
  PostOwn([this](EngineCore& core) { core.CancelAll(Refusal()); });
}

void Engine::Run() {
  bool progress = false;
  while (!stopping_) {
    const std::chrono::nanoseconds patience = progress ? std::chrono::nanoseconds(0) : Patience();
    idle_ = !progress && !core_->HasWork();
    std::vector<Command> commands = commands_.Drain(patience);
    if (idle_) {
      last_progress_ = clock_.Now().time_since_epoch();
      idle_ = false;
    }
    core_->BeginRound();
    for (Command& command : commands) command(*core_);
    progress = core_->Step();
    if (progress) last_progress_ = clock_.Now().time_since_epoch();
    if (!is_lost_ && !core_->lost().ok()) {  // before the streams hear of it
      lost_ = core_->lost();
      takes_streams_ = false;
      is_lost_ = true;
    }
    const bool is_done = core_->stream_count() == 0 && !core_->HasDepartures();
    if (on_drained_ && is_done) core_->WhenAllIsSaid(std::exchange(on_drained_, nullptr));
  }
  const Status why = Unavailable("the server is shutting down");
  core_->CancelAll(why);
  for (Command& command : commands_.Drain(std::chrono::seconds(0))) command(*core_);
  core_->CancelAll(why);
  core_->EndDepartures();
  if (on_drained_) core_->WhenAllIsSaid(std::exchange(on_drained_, nullptr));
  core_->Close();
}

// How long to wait for a command when the last step found nothing to do.
std::chrono::nanoseconds Engine::Patience() const {
  if (is_lost_) return kIdleWait;
  if (core_->HasCopiesUnderWay()) return kCopyWait;
  return core_->HasWork() ? std::chrono::nanoseconds(kBlockedWait) : kIdleWait;
}

// A step that hangs holds the engine thread, so somebody else must notice.
void Engine::Watch() {
  const auto period =
      std::max<std::chrono::milliseconds>(config_.watchdog_max / 4, std::chrono::milliseconds(10));
  while (!stop_.try_acquire_for(period)) {
    const bool idle = idle_;  // first: when it turns false, last_progress_ is fresh
    const auto stalled = clock_.Now().time_since_epoch() - last_progress_.load();
    const bool healthy = idle || stalled < config_.watchdog_max;
    if (!healthy && healthy_) LogStall(stalled);
    healthy_ = healthy;
  }
}

void Engine::LogStall(std::chrono::nanoseconds stalled) const {
  LogError("watchdog: work is waiting and no step has ended for " +
           std::to_string(std::chrono::duration_cast<std::chrono::seconds>(stalled).count()) +
           " s");
  if (const auto silence = std::chrono::duration_cast<std::chrono::seconds>(core_->DiskSilence());
      silence.count() > 0) {
    LogError("watchdog: the disk has not taken what sessions wait for, for " +
             std::to_string(silence.count()) + " s");
  }
  const std::vector<SequenceState> states = core_->StatesAtStep();
  for (size_t i = 0; i < std::min(states.size(), kLoggedStatesMax); ++i) {
    LogError("watchdog: " + Describe(states[i]));
  }
  if (states.size() > kLoggedStatesMax) {
    LogError("watchdog: and " + std::to_string(states.size() - kLoggedStatesMax) + " more");
  }
}

}  // namespace cairn
