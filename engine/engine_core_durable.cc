// How the core keeps what it says to what is durable: sessions of earlier servers, and changes that
// are taken back because the disk would not take them.
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/message_text.h"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kReadAgainPeriod{500};
constexpr size_t kWrittenAgainBytes = 4u << 20;  // in one round

}  // namespace

void EngineCore::RestoreSessions() {
  if (parts_.journal == nullptr) return;
  StoredSessions loaded = parts_.journal->TakeLoaded();
  sessions_.Continue(loaded.ledger.next_serial, loaded.ledger.lived);
  for (StoredSession& stored : loaded.sessions) {
    const Status restored = sessions_.Restore(std::move(stored));
    if (!restored.ok()) LogError(restored.message());
  }
}

void EngineCore::BeginRound() {
  if (parts_.journal != nullptr) {
    PauseFullStreams();
    TakeBackFailures();
    WriteAgain();
  }
  ExpireSessions();
}

void EngineCore::PauseFullStreams() {
  for (const SequenceId id : parts_.journal->TakeFull()) runner_.Pause(id);
}

void EngineCore::ResumeStream(SequenceId id) {
  // That its sink was full may not have been seen yet, and must not be seen after this.
  if (parts_.journal != nullptr) PauseFullStreams();
  runner_.Resume(id);
}

// Streams of the sessions concerned end, and the sessions become what the disk has.
void EngineCore::TakeBackFailures() {
  if (parts_.journal->failed()) {
    const auto failure = parts_.journal->TakeFailure(sessions_);
    for (const std::string& id : failure->sessions) {
      if (const Sequence* sequence = runner_.FindBySession(id)) {
        runner_.Cancel(sequence->id, failure->why);
      }
      runner_.Unpin(id);
      unread_.insert(id);
    }
    read_again_at_ = clock_.Now();
  }
  if (unread_.empty() || clock_.Now() < read_again_at_) return;
  std::erase_if(unread_, [this](const std::string& id) { return ReadAgain(id); });
  read_again_at_ = clock_.Now() + kReadAgainPeriod;
}

// True once the table has what the disk has. Until then the session is set aside.
bool EngineCore::ReadAgain(const std::string& id) {
  const Result<const Session*> before = sessions_.Find(id);
  StoredSession aside{.damage = Status(), .session = {.id = id}};
  if (before.ok()) aside.session.serial = (*before)->serial;
  sessions_.Forget(id);
  Result<std::optional<StoredSession>> stored = LoadSession(parts_.journal->store(), id);
  if (stored.ok()) {
    if (!stored->has_value()) return true;
    const Status restored = sessions_.Restore(**std::move(stored));
    if (!restored.ok()) LogError(restored.message());
    return true;
  }
  aside.damage =
      Status(stored.status().code(),
             "session " + Quoted(id) + " cannot be read again yet: " + stored.status().message())
          .WithRetryAfter(kReadAgainPeriod);
  LogError(sessions_.Restore(std::move(aside)).message());
  return false;
}

// What the disk has lost is in memory yet.
void EngineCore::WriteAgain() {
  if (parts_.journal->TakeLost()) {
    unwritten_ = sessions_.ids();
    LogWarning("sessions: all " + std::to_string(unwritten_.size()) +
               " are written again, as they are in memory");
  }
  for (size_t bytes = 0; bytes < kWrittenAgainBytes && !unwritten_.empty();) {
    bytes += sessions_.WriteAgain(unwritten_.back());
    unwritten_.pop_back();
  }
}

void EngineCore::Refuse(const StreamStart& start, const std::string& session_id,
                        const Status& why) {
  StreamEnd end{.status = why};
  if (parts_.journal == nullptr || session_id.empty() || !CanChangeSessions().ok()) {
    return start.sink->OnEnd(std::move(end));
  }
  parts_.journal->Deliver({.id = start.id,
                           .session_id = session_id,
                           .sink = start.sink,
                           .update = {},
                           .end = std::move(end)});
}

void EngineCore::WhenAllIsSaid(const std::function<void()>& then) {
  if (parts_.journal == nullptr) return then();
  parts_.journal->Hold(SessionJournal::kNoSession, [then](const Status&) { then(); });
  parts_.journal->Submit(sessions_);
}

void EngineCore::Close() {
  if (parts_.journal != nullptr) parts_.journal->Close(sessions_);
}

}  // namespace cairn
