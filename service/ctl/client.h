// A connection to a server and what every command of cairnctl shares: how a call is prepared, how
// an answer or an error is shown, what Ctrl-C does, and what the program's exit code becomes.
//
// Exit codes: 0 done, 1 the server refused or the output was lost, 2 wrong usage, 3 no server or no
// answer in time, 130 stopped by Ctrl-C. Threads: one, beside the one that waits for Ctrl-C
// (interrupt.h).
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/v1/cache_service.grpc.pb.h"
#include "cairn/v1/decode_service.grpc.pb.h"
#include "cairn/v1/model_service.grpc.pb.h"
#include "cairn/v1/session_service.grpc.pb.h"

namespace cairn {

struct ClientOptions {
  std::string address = "127.0.0.1:50051";
  bool json = false;           // one JSON object a line in place of text
  double timeout_seconds = 0;  // of each call; 0: none
};

// How the user said what a field of a request holds: "--top-p"; "" when it was not said.
using FlagNamer = std::function<std::string(const std::string& field)>;

class Client {
 public:
  // `flag_of` is called once the command line is parsed.
  Client(const ClientOptions& options, FlagNamer flag_of)
      : options_(options), flag_of_(std::move(flag_of)) {}

  // The stubs connect when they are first asked for, so that the options may be set until then.
  v1::SessionService::StubInterface& sessions() { return *Connected().sessions_; }
  v1::DecodeService::StubInterface& decoding() { return *Connected().decoding_; }
  v1::CacheService::StubInterface& cache() { return *Connected().cache_; }
  v1::ModelService::StubInterface& model() { return *Connected().model_; }
  std::shared_ptr<grpc::Channel> channel() { return Connected().channel_; }

  const ClientOptions& options() const { return options_; }
  int exit_code() const { return exit_code_; }

  // Sets the deadline.
  void Prepare(grpc::ClientContext& context) const;

  // Makes a unary call and prints the answer as JSON or as `text` makes it.
  template <class Stub, class Request, class Response, class Text>
  void Call(Stub& stub,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            const Request& request, const Text& text) {
    grpc::ClientContext context;
    Prepare(context);
    Response response;
    const grpc::Status status = (stub.*method)(&context, request, &response);
    if (!status.ok()) return Fail(status);
    if (options_.json) return PrintJson(response);
    PrintLine(text(response));
  }

  void PrintJson(const google::protobuf::Message& message);
  void PrintLine(const std::string& line);
  void Print(std::string_view text);
  bool is_output_lost() const { return output_error_ != 0; }

  // Says on stderr what went wrong, and sets the exit code. `flag_of`: for what a line of the chat
  // said, in place of the command line.
  void Fail(const grpc::Status& status) { Fail(status, flag_of_); }
  void Fail(const grpc::Status& status, const FlagNamer& flag_of);
  void FailUsage(const std::string& message);

  // At the end: output that could not be written is a failure, whatever was answered.
  void CheckOutput();

 private:
  Client& Connected();

  const ClientOptions& options_;
  const FlagNamer flag_of_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::StubInterface> sessions_;
  std::unique_ptr<v1::DecodeService::StubInterface> decoding_;
  std::unique_ptr<v1::CacheService::StubInterface> cache_;
  std::unique_ptr<v1::ModelService::StubInterface> model_;
  int output_error_ = 0;  // errno of the first write that failed
  int exit_code_ = 0;
};

// An error in one line: code, message, the fields at fault with their flags, when to try again.
std::string ErrorText(const grpc::Status& status, const std::string& address,
                      const FlagNamer& flag_of);

// Whether trying again, as it is, can help: the server is gone or not yet there.
bool IsLostConnection(const grpc::Status& status);

}  // namespace cairn
