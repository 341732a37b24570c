// The terminal chat: a session of the server, one turn a line.
//
// A turn is two calls. AppendContent names the token count that it expects, and Decode the position
// that it starts from, so either may be sent again after a lost connection: the message is never
// there twice, and the stream goes on with the first token that was not seen. A turn that produced
// no token leaves no trace in the session. Threads: one, beside the one that waits for Ctrl-C.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "service/ctl/client.h"

namespace cairn {

struct ChatOptions {
  std::string
      session;  // name or id, made if it is not there; empty: a new one with a name of the server's
  std::string system;       // the first message of a new session
  uint32_t max_tokens = 0;  // of one answer; 0: the server's default
  v1::SamplingParams sampling;
};

class Chat {
 public:
  Chat(Client& client, const ChatOptions& options);

  // Reads lines from standard input until its end or /quit.
  void Run();

 private:
  // What one Decode call, and then a whole turn, has come to.
  struct Stream {
    int64_t next_position = 0;
    uint32_t token_count = 0;
    bool finished = false;
    v1::Usage usage;
  };

  grpc::Status OpenSession();
  void Greet();
  bool Handle(const std::string& line);  // false: quit
  bool Command(const std::string& line);
  void ListSessions();
  void FailCommand(const std::string& command, const grpc::Status& status);
  void Fork(const std::string& id);
  void Truncate(const std::string& count);
  void Resume(const std::string& name);
  void ShowEnd();

  void Turn(const std::string& line);
  grpc::Status Append(const std::string& line, int64_t before, int64_t& after);
  grpc::Status Decode(Stream& stream);
  grpc::Status DecodeOnce(Stream& stream);
  bool WaitForServer(int attempt);  // false: no sense in waiting longer

  grpc::Status Get(const std::string& name, v1::Session& session);
  grpc::Status TruncateTo(int64_t token_count, v1::Session& session);
  void Note(const std::string& line) const;  // dim on a terminal

  Client& client_;
  const ChatOptions& options_;
  const bool reads_terminal_;
  const bool writes_terminal_;
  std::string session_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace cairn
