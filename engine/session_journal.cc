#include "engine/session_journal.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cairn {

SessionJournal::SessionJournal(std::unique_ptr<DurableStore> store, CommitSync sync,
                               StoredSessions loaded, const Clock& clock,
                               std::chrono::milliseconds patience)
    : store_(std::move(store)),
      sync_(sync),
      clock_(clock),
      patience_(patience),
      loaded_(std::move(loaded)) {
  thread_ = std::thread([this] { Run(); });
}

SessionJournal::~SessionJournal() {
  Stop();
  CHECK(held_.empty());  // somebody waits for an answer
}

void SessionJournal::Hold(std::string subject, std::function<void(const Status&)> say) {
  held_.push_back({std::move(subject), std::move(say)});
}

void SessionJournal::Deliver(Delivery delivery) {
  if (delivery.sink == nullptr) return;
  std::string session_id = delivery.session_id;
  Hold(std::move(session_id), [this, delivery = std::move(delivery)](const Status& made) mutable {
    Tell(delivery, made);
  });
}

void SessionJournal::Submit(const SessionTable& sessions) {
  const bool is_empty = IsEmpty();
  if (is_empty && !behind_since_) return;
  if (WaitForRoom() && !is_empty) Queue(Collect(sessions));
}

SessionJournal::Round SessionJournal::Collect(const SessionTable& sessions) {
  Round round;
  if (!changes_.empty()) {
    for (const auto& [serial, change] : changes_.Take()) {
      const Session* session = nullptr;
      if (!change.gone) {
        const Result<const Session*> found = sessions.Find(change.id);
        CHECK(found.ok() && (*found)->serial == serial);
        session = *found;
      }
      AddChange(serial, change, session, round.batch);
      round.changed.insert(change.id);
    }
    AddLedger({sessions.next_serial(), sessions.lived()}, round.batch);
  }
  round.held = std::exchange(held_, {});
  return round;
}

// False: the journal is behind.
bool SessionJournal::WaitForRoom() {
  std::unique_lock lock(mutex_);
  const bool has_room =
      behind_since_ ? HasRoom() : changed_.wait_for(lock, patience_, [this] { return HasRoom(); });
  lock.unlock();
  if (has_room && behind_since_) {
    LogWarning("sessions: the disk answers again; " + KeepsUp().message() + " before");
    behind_since_.reset();
  } else if (!has_room && !behind_since_) {
    behind_since_ = clock_.Now();
    LogError("sessions: the disk does not answer; whatever changes sessions waits or is refused");
  }
  return has_room;
}

Status SessionJournal::KeepsUp() const {
  if (!behind_since_) return Status();
  const auto since =
      std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - *behind_since_);
  return Unavailable("the disk of the sessions has not answered for " +
                     std::to_string(since.count()) + " s")
      .WithRetryAfter(std::chrono::seconds(1));
}

bool SessionJournal::Concerns(const std::string& subject) const {
  if (subject == kNoSession) return false;
  const std::lock_guard lock(mutex_);
  if (subject == kAnySession) {
    return !changes_.empty() || !pending_.changed.empty() || !busy_with_.empty() || failure_;
  }
  return changes_.Has(subject) || pending_.changed.contains(subject) ||
         busy_with_.contains(subject) || (failure_ && failure_->sessions.contains(subject));
}

std::chrono::nanoseconds SessionJournal::WritingFor() const {
  const std::lock_guard lock(mutex_);
  return writing_since_ ? clock_.Now() - *writing_since_ : std::chrono::nanoseconds(0);
}

size_t SessionJournal::UnwrittenCount() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> unwritten = busy_with_;
  unwritten.insert(pending_.changed.begin(), pending_.changed.end());
  return unwritten.size();
}

void SessionJournal::Queue(Round round) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return HasRoom(); });
  pending_.batch.Add(std::move(round.batch));
  pending_.changed.merge(round.changed);
  std::ranges::move(round.held, std::back_inserter(pending_.held));
  ++pending_rounds_;
  changed_.notify_all();
}

void SessionJournal::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return pending_rounds_ > 0 || closing_; });
    if (pending_rounds_ == 0) return;
    Round round = std::exchange(pending_, {});
    pending_rounds_ = 0;
    busy_ = true;
    busy_with_ = round.changed;
    writing_since_ = clock_.Now();
    std::optional<Failure> failure = failure_;
    changed_.notify_all();
    lock.unlock();
    const Status written = Write(round.batch, failure);
    if (!written.ok()) {
      if (!failure) failure = Failure{.why = written, .sessions = {}};
      failure->sessions.insert(round.changed.begin(), round.changed.end());
    }
    lock.lock();
    failure_ = failure;
    writing_since_.reset();
    lock.unlock();
    Say(round, failure);
    lock.lock();
    busy_ = false;
    busy_with_.clear();
    changed_.notify_all();
  }
}

Status SessionJournal::Write(const DurableBatch& batch, const std::optional<Failure>& failure) {
  if (batch.empty()) return Status();
  Status written = failure ? failure->why : store_->Commit(batch, sync_);
  if (store_->TakeLost()) lost_ = true;
  NoteOutcome(written);
  if (written.ok() || failure) return written;
  Status why(written.code(), "the change could not be made durable: " + written.message());
  if (written.retry_after()) return std::move(why).WithRetryAfter(*written.retry_after());
  return why;
}

// The log has one line when a spell of failures begins, and one when it is over.
void SessionJournal::NoteOutcome(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    ++(status.ok() ? counts_.commits : counts_.failed_commits);
  }
  if (!status.ok()) {
    ++failed_in_spell_;
    if (failing_since_) return;
    failing_since_ = clock_.Now();
    LogError("sessions: changes cannot be made durable and are refused: " + status.message());
  } else if (failing_since_) {
    const auto spell =
        std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - *failing_since_);
    LogWarning("sessions: changes are durable again, after " + std::to_string(spell.count()) +
               " s and " + std::to_string(failed_in_spell_) + " batches that were refused");
    failing_since_.reset();
    failed_in_spell_ = 0;
  }
}

void SessionJournal::Say(Round& round, const std::optional<Failure>& failure) {
  for (Held& held : round.held) {
    const bool failed =
        failure && (held.subject == kAnySession || failure->sessions.contains(held.subject));
    held.say(failed ? failure->why : Status());
  }
}

void SessionJournal::Tell(Delivery& delivery, const Status& made) {
  if (delivery.update && made.ok()) {
    const std::lock_guard lock(full_mutex_);
    if (!delivery.sink->OnTokens(*std::move(delivery.update))) full_.insert(delivery.id);
  }
  if (!delivery.end) return;
  if (!made.ok()) delivery.end = StreamEnd{.status = made, .usage = delivery.end->usage};
  delivery.sink->OnEnd(*std::move(delivery.end));
}

std::vector<SequenceId> SessionJournal::TakeFull() {
  const std::lock_guard lock(full_mutex_);
  std::vector<SequenceId> full(full_.begin(), full_.end());
  full_.clear();
  return full;
}

bool SessionJournal::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

std::optional<SessionJournal::Failure> SessionJournal::TakeFailure(const SessionTable& sessions) {
  if (!IsEmpty()) Queue(Collect(sessions));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pending_rounds_ == 0 && !busy_; });
  return std::exchange(failure_, std::nullopt);
}

void SessionJournal::Close(const SessionTable& sessions) {
  if (!IsEmpty()) Queue(Collect(sessions));
  Round last;
  AddLedger({sessions.next_serial(), sessions.lived()}, last.batch);
  Queue(std::move(last));
  Stop();
}

void SessionJournal::Stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

JournalCounts SessionJournal::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace cairn
