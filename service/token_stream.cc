#include "service/token_stream.h"

#include <mutex>
#include <optional>
#include <utility>

#include "service/pending_output.h"
#include "service/rpc.h"
#include "service/stream_writer.h"

namespace cairn {
namespace {

class TokenStream final : public ByteStream,
                          public TokenSink,
                          public WritableStream,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  TokenStream(const ServiceParts& parts, std::chrono::system_clock::time_point deadline,
              TokenStreamOptions options)
      : engine_(parts.engine),
        writer_(parts.writer),
        deadline_(deadline),
        options_(std::move(options)),
        pending_(parts.pending_tokens_max) {}

  void Start(const StreamSubmit& submit) {
    self_ = shared_from_this();
    const StreamId stream = submit(self_);
    bool cancel = false;
    bool resume = false;
    {
      // Until here nobody could name the stream to the engine: do what was wanted meanwhile.
      std::lock_guard lock(mutex_);
      stream_ = stream;
      cancel = cancelled_ && !end_;
      resume = std::exchange(resume_wanted_, false) && !end_;
    }
    if (cancel) engine_.CancelStream(stream, WhyCancelled());
    if (resume) engine_.ResumeStream(stream);
  }

  // From the engine.
  bool OnTokens(StreamUpdate update) override {
    std::lock_guard lock(mutex_);
    pending_.Add(std::move(update));
    // What is about to be written is not in the way.
    const bool full = writing_ && pending_.full();
    if (full) paused_ = true;
    CallWriter(!wrote_ || pending_.full());
    return !full;
  }

  void OnEnd(StreamEnd end) override {
    std::lock_guard lock(mutex_);
    CHECK(!end_);
    end_ = std::move(end);
    CallWriter(true);
  }

  // From the writer.
  void Write() override {
    {
      std::lock_guard lock(mutex_);
      posted_ = false;
      urgent_ = false;
    }
    Advance();
  }

  // From gRPC.
  void OnWriteDone(bool ok) override {
    if (!ok) Cancel();
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    Advance();
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override {
    const std::shared_ptr<TokenStream> last = std::move(self_);  // may end this object
  }

 private:
  enum class Action { kNone, kWrite, kWriteLast, kFinish };

  // Has the writer come by; under the lock, which the writer never waits for with its own. A write
  // that is under way sees to the rest.
  void CallWriter(bool urgent) {
    if (writing_) return;
    if (!std::exchange(posted_, true)) {
      writer_.Post(shared_from_this(), urgent);
    } else if (urgent && !urgent_) {
      writer_.Hurry();
    }
    urgent_ |= urgent;
  }

  Status WhyCancelled() const {
    if (std::chrono::system_clock::now() >= deadline_) {
      return Status(Code::kDeadlineExceeded, "the deadline has passed");
    }
    return Status(Code::kCancelled, "the client has gone");
  }

  // Nobody reads any more. The engine hears of it once, unless the stream is over: it keeps a place
  // in its queue for the cancels of streams that it has, not for those that it has refused.
  void Cancel() {
    std::optional<StreamId> stream;
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(cancelled_, true) || end_) return;
      stream = stream_;
    }
    if (stream) engine_.CancelStream(*stream, WhyCancelled());
  }

  // Decides, under the lock, what this thread is to do; `message_` is its own until that is done.
  Action Decide(bool& resume) {
    if (writing_ || finished_) return Action::kNone;
    if (end_ && (cancelled_ || (!end_->status.ok() && pending_.empty()))) {
      finished_ = true;
      return Action::kFinish;
    }
    if (end_ && end_->status.ok()) {
      finished_ = true;
      message_ = options_.format(pending_.Take(), &*end_);
      return Action::kWriteLast;
    }
    if (pending_.empty() || cancelled_) return Action::kNone;
    writing_ = true;
    wrote_ = true;
    message_ = options_.format(pending_.Take(), nullptr);
    if (std::exchange(paused_, false) && !end_) {
      resume = stream_.has_value();
      resume_wanted_ = !resume;
    }
    return Action::kWrite;
  }

  // Writes, ends or does nothing, as the state has it. Any thread, without the lock.
  void Advance() {
    bool resume = false;
    Action action = Action::kNone;
    {
      std::lock_guard lock(mutex_);
      action = Decide(resume);
    }
    switch (action) {
      case Action::kNone:
        break;
      case Action::kWrite:
        StartWrite(&message_);
        break;
      case Action::kWriteLast:
        StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
        break;
      case Action::kFinish:
        Finish(ToGrpcStatus(end_->status.ok() ? WhyCancelled() : end_->status, options_.subject));
        break;
    }
    if (resume) engine_.ResumeStream(*stream_);
  }

  Engine& engine_;
  StreamWriter& writer_;
  const std::chrono::system_clock::time_point deadline_;
  const TokenStreamOptions options_;
  std::shared_ptr<TokenStream> self_;  // from Start to OnDone

  std::mutex mutex_;  // of all below
  PendingOutput pending_;
  // While `writing_` and once `finished_`, this is gRPC's, or the thread's that is about to write
  // it.
  grpc::ByteBuffer message_;
  std::optional<StreamId> stream_;
  std::optional<StreamEnd> end_;  // does not change once set
  bool writing_ = false;
  bool wrote_ = false;          // a message, so that the client knows that it has begun
  bool posted_ = false;         // to the writer, which has not come by
  bool urgent_ = false;         // and is to come at once
  bool paused_ = false;         // the engine was told that the sink is full
  bool resume_wanted_ = false;  // until the stream has a name
  bool cancelled_ = false;
  bool finished_ = false;
};

// One message at a time: asks the engine for the next tokens, writes them, asks again, up to what
// there was at the first time. gRPC keeps the call until Finish, so that the engine's replies
// always find it.
class TokenReader final : public ByteStream {
 public:
  TokenReader(Engine& engine, ReadTokensRequest request)
      : engine_(engine),
        request_(std::move(request)),
        subject_({.used = SessionName(request_.id), .made = ""}),
        wanted_count_(request_.token_count == 0 ? INT64_MAX : request_.token_count) {
    Ask();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    if (read_count_ == wanted_count_) return Finish(grpc::Status::OK);
    Ask();
  }
  void OnDone() override { delete this; }

 private:
  static constexpr int64_t kMessageTokens = 4096;

  void Ask() {
    engine_.ReadTokens(request_.id, request_.start_position + read_count_,
                       std::min(kMessageTokens, wanted_count_ - read_count_),
                       [this](Result<TokenRange> range) { Answer(std::move(range)); });
  }

  void Answer(Result<TokenRange> range) {
    if (!range.ok()) return Finish(ToGrpcStatus(range.status(), subject_));
    if (range->token_ids.empty()) return Finish(grpc::Status::OK);
    wanted_count_ = std::min(wanted_count_, range->end - request_.start_position);
    read_count_ += static_cast<int64_t>(range->token_ids.size());
    message_ = ToBytes(ToProto(*std::move(range)));
    StartWrite(&message_);
  }

  Engine& engine_;
  const ReadTokensRequest request_;
  const ErrorSubject subject_;
  int64_t wanted_count_;
  int64_t read_count_ = 0;
  grpc::ByteBuffer message_;
};

class RefusedStream final : public ByteStream {
 public:
  explicit RefusedStream(const Status& status) { Finish(ToGrpcStatus(status, {})); }
  void OnDone() override { delete this; }
};

}  // namespace

ByteStream* StartTokenStream(const ServiceParts& parts, const grpc::CallbackServerContext& context,
                             TokenStreamOptions options, const StreamSubmit& submit) {
  auto stream = std::make_shared<TokenStream>(parts, context.deadline(), std::move(options));
  stream->Start(submit);
  return stream.get();  // gRPC's until OnDone
}

ByteStream* StartTokenReader(Engine& engine, ReadTokensRequest request) {
  return new TokenReader(engine, std::move(request));
}

ByteStream* RefuseStream(const Status& status) { return new RefusedStream(status); }

}  // namespace cairn
