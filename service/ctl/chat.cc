#include "service/ctl/chat.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/utf8.h"
#include "service/ctl/interrupt.h"
#include "service/ctl/options.h"
#include "service/ctl/text.h"
#include "service/ctl/values.h"

namespace cairn {
namespace {

constexpr int kReconnectAttemptsMax = 10;
constexpr std::chrono::seconds kReconnectWait(1);
constexpr std::chrono::milliseconds kNoticeWait{200};  // for a server to see a stream cut
constexpr int64_t kShownTokens = 120;

constexpr char kHelp[] =
    "/sessions       list the sessions of the server\n"
    "/fork NAME      go on in a copy of this session; the original stays as it is\n"
    "/truncate N     forget every token from position N on\n"
    "/resume NAME    go on with another session\n"
    "/quit           leave (Ctrl-D too); the session stays\n"
    "Ctrl-C stops an answer.";

}  // namespace

Chat::Chat(Client& client, const ChatOptions& options)
    : client_(client),
      options_(options),
      reads_terminal_(isatty(STDIN_FILENO) != 0),
      writes_terminal_(isatty(STDOUT_FILENO) != 0) {}

void Chat::Note(const std::string& line) const {
  std::printf(writes_terminal_ ? "\033[2m%s\033[0m\n" : "%s\n", line.c_str());
  std::fflush(stdout);
}

void Chat::Run() {
  const grpc::Status opened = OpenSession();
  if (!opened.ok()) return client_.Fail(opened);
  Greet();
  const Interruptible at_prompt([this] {
    std::printf("\n");
    Note("Ctrl-D or /quit leaves.");
    std::printf("> ");
    std::fflush(stdout);
  });
  std::string line;
  while (true) {
    if (reads_terminal_) std::printf("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (!Handle(line)) return;
  }
  if (reads_terminal_) std::printf("\n");
}

grpc::Status Chat::OpenSession() {
  v1::Session session;
  if (!options_.session.empty()) {
    session_ = SessionName(options_.session);
    grpc::Status found = Get(session_, session);
    if (found.ok() && !options_.system.empty())
      Note("--system is for a new session; this one is not.");
    if (found.error_code() != grpc::StatusCode::NOT_FOUND) return found;
  }
  v1::CreateSessionRequest request;
  request.set_session_id(session_.substr(session_.find('/') + 1));
  if (!options_.system.empty()) {
    v1::ChatMessages& chat = *request.mutable_content()->mutable_chat();
    chat.set_omit_generation_prompt(true);
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role("system");
    message.set_content(options_.system);
  }
  grpc::ClientContext context;
  client_.Prepare(context);
  grpc::Status status = client_.sessions().CreateSession(&context, request, &session);
  session_ = session.name();
  return status;
}

void Chat::Greet() {
  if (!reads_terminal_) return;
  grpc::ClientContext context;
  client_.Prepare(context);
  v1::Model model;
  client_.model().GetModel(&context, v1::GetModelRequest(), &model);
  Note(model.name() + " at " + client_.options().address + ", " + session_ +
       ". /help lists commands.");
  ShowEnd();
}

bool Chat::Handle(const std::string& line) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return true;
  if (const std::optional<size_t> at = FindInvalidUtf8(line)) {
    client_.Fail(grpc::Status(
        grpc::StatusCode::INVALID_ARGUMENT,
        "this line was not sent: it is not UTF-8 from byte " + std::to_string(*at) + " on"));
    return true;
  }
  if (line[0] == '/') return Command(line);
  Turn(line);
  return true;
}

bool Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string command = line.substr(0, space);
  const size_t begin = line.find_first_not_of(' ', space);
  std::string argument = begin == std::string::npos ? "" : line.substr(begin);
  argument.erase(argument.find_last_not_of(" \r") + 1);
  if (command == "/quit") return false;
  if (command == "/help") {
    Note(kHelp);
  } else if (command == "/sessions") {
    ListSessions();
  } else if (command == "/fork") {
    Fork(argument);
  } else if (command == "/truncate") {
    Truncate(argument);
  } else if (command == "/resume") {
    Resume(argument);
  } else {
    Note(command + " is no command; /help lists them.");
  }
  return true;
}

void Chat::ListSessions() {
  v1::ListSessionsRequest request;
  bool is_first = true;
  do {
    grpc::ClientContext context;
    client_.Prepare(context);
    v1::ListSessionsResponse response;
    const grpc::Status status = client_.sessions().ListSessions(&context, request, &response);
    if (!status.ok()) return client_.Fail(status);
    if (std::exchange(is_first, false)) Note(SessionRowTitles());
    for (const v1::Session& session : response.sessions()) {
      Note(SessionRow(session) + (session.name() == session_ ? "  <- here" : ""));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
}

// Whatever field is at fault, the command has filled it.
void Chat::FailCommand(const std::string& command, const grpc::Status& status) {
  client_.Fail(status, [&command](const std::string&) { return command; });
}

void Chat::Fork(const std::string& id) {
  v1::ForkSessionRequest request;
  request.set_name(session_);
  request.set_session_id(id);
  grpc::ClientContext context;
  client_.Prepare(context);
  v1::Session session;
  const grpc::Status status = client_.sessions().ForkSession(&context, request, &session);
  if (!status.ok()) return FailCommand("/fork", status);
  session_ = session.name();
  Note("Now in " + session_ + ", " + std::to_string(session.token_count()) + " tokens from " +
       session.parent() + ".");
}

void Chat::Truncate(const std::string& count) {
  const std::optional<int64_t> token_count = ParseWhole<int64_t>(count);
  if (!token_count) return Note("/truncate N: how many tokens stay.");
  v1::Session session;
  const grpc::Status status = TruncateTo(*token_count, session);
  if (!status.ok()) return FailCommand("/truncate", status);
  Note(session_ + " has " + std::to_string(session.token_count()) + " tokens now.");
}

void Chat::Resume(const std::string& name) {
  if (name.empty()) return Note("/resume NAME: which session; /sessions lists them.");
  v1::Session session;
  const grpc::Status status = Get(SessionName(name), session);
  if (!status.ok()) return FailCommand("/resume", status);
  session_ = session.name();
  Note("Now in " + session_ + ", " + std::to_string(session.token_count()) + " tokens.");
  ShowEnd();
}

// The end of the conversation so far, to remember where it stood.
void Chat::ShowEnd() {
  v1::Session session;
  if (!Get(session_, session).ok() || session.token_count() == 0) return;
  v1::ReadTokensRequest request;
  request.set_name(session_);
  request.set_start_position(std::max<int64_t>(0, session.token_count() - kShownTokens));
  grpc::ClientContext context;
  client_.Prepare(context);
  const auto reader = client_.sessions().ReadTokens(&context, request);
  std::string text = request.start_position() > 0 ? "..." : "";
  v1::ReadTokensResponse response;
  while (reader->Read(&response)) text += response.text();
  if (reader->Finish().ok()) Note(text);
}

void Chat::Turn(const std::string& line) {
  interrupted_ = false;
  const Interruptible stop([this] { interrupted_ = true; });
  v1::Session session;
  grpc::Status status = Get(session_, session);
  if (!status.ok()) return client_.Fail(status);
  const int64_t before = session.token_count();
  Stream stream;
  status = Append(line, before, stream.next_position);
  if (!status.ok()) return client_.Fail(status);
  status = Decode(stream);
  if (stream.token_count > 0) std::printf("\n");
  if (stream.finished) return Note(UsageText(stream.usage));
  if (stream.token_count == 0) TruncateTo(before, session);
  if (interrupted_) return Note("Stopped.");
  client_.Fail(status);
}

// Puts the message at the end exactly once, however often it has to be sent.
grpc::Status Chat::Append(const std::string& line, int64_t before, int64_t& after) {
  v1::AppendContentRequest request;
  request.set_name(session_);
  request.set_expected_token_count(before);
  v1::ChatMessage& message = *request.mutable_content()->mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(line);
  for (int attempt = 0;; ++attempt) {
    grpc::ClientContext context;
    client_.Prepare(context);
    v1::AppendContentResponse response;
    grpc::Status status = client_.sessions().AppendContent(&context, request, &response);
    after = response.token_count();
    if (attempt > 0 && status.error_code() == grpc::StatusCode::ABORTED) {
      v1::Session session;  // the call before this one had arrived, only its answer had not
      grpc::Status found = Get(session_, session);
      after = session.token_count();
      return found;
    }
    if (!IsLostConnection(status) || !WaitForServer(attempt)) return status;
  }
}

grpc::Status Chat::Decode(Stream& stream) {
  bool was_lost = false;
  for (int attempt = 0;; ++attempt) {
    const int64_t position = stream.next_position;
    grpc::Status status = DecodeOnce(stream);
    const bool is_lost = IsLostConnection(status);
    // The server may notice later than this client that the stream before this one is cut.
    const bool is_early = was_lost && status.error_code() == grpc::StatusCode::ABORTED;
    if (stream.finished || interrupted_ || (!is_lost && !is_early)) return status;
    if (stream.next_position > position) attempt = 0;
    if (is_lost) {
      was_lost = true;
      if (stream.token_count > 0) std::printf("\n");
      Note("Connection lost; asking again from position " + std::to_string(stream.next_position) +
           ".");
    }
    if (!WaitForServer(attempt)) return status;
    if (is_early) std::this_thread::sleep_for(kNoticeWait);
  }
}

grpc::Status Chat::DecodeOnce(Stream& stream) {
  v1::DecodeRequest request;
  request.set_name(session_);
  request.set_start_position(stream.next_position);
  if (options_.max_tokens > 0) request.set_max_tokens(options_.max_tokens - stream.token_count);
  *request.mutable_sampling() = options_.sampling;
  grpc::ClientContext context;
  client_.Prepare(context);
  const Interruptible stop([this, &context] {
    interrupted_ = true;
    context.TryCancel();
  });
  if (interrupted_) context.TryCancel();  // before this call could be reached
  const auto reader = client_.sessions().Decode(&context, request);
  v1::DecodeResponse response;
  while (reader->Read(&response)) {
    std::fwrite(response.text().data(), 1, response.text().size(), stdout);
    std::fflush(stdout);
    if (response.token_ids_size() > 0) {
      stream.next_position = response.position() + response.token_ids_size();
      stream.token_count += static_cast<uint32_t>(response.token_ids_size());
    }
    if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
      stream.finished = true;
      stream.usage = response.usage();
    }
  }
  return reader->Finish();
}

bool Chat::WaitForServer(int attempt) {
  if (attempt >= kReconnectAttemptsMax || interrupted_) return false;
  client_.channel()->WaitForConnected(std::chrono::system_clock::now() + kReconnectWait);
  return !interrupted_;
}

grpc::Status Chat::Get(const std::string& name, v1::Session& session) {
  v1::GetSessionRequest request;
  request.set_name(name);
  grpc::ClientContext context;
  client_.Prepare(context);
  return client_.sessions().GetSession(&context, request, &session);
}

grpc::Status Chat::TruncateTo(int64_t token_count, v1::Session& session) {
  v1::TruncateSessionRequest request;
  request.set_name(session_);
  request.set_token_count(token_count);
  grpc::ClientContext context;
  client_.Prepare(context);
  return client_.sessions().TruncateSession(&context, request, &session);
}

}  // namespace cairn
