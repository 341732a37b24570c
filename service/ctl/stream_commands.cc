// The RPCs that stream: text goes to stdout as it comes, usage to stderr at the end; with --json
// each message is a line.
#include <cstdio>
#include <memory>

#include "service/ctl/commands.h"
#include "service/ctl/interrupt.h"
#include "service/ctl/options.h"
#include "service/ctl/text.h"
#include "service/ctl/values.h"

namespace cairn {
namespace {

void PrintUsage(const v1::Usage& usage) { std::fprintf(stderr, "%s\n", UsageText(usage).c_str()); }

// Reads a stream to its end. Ctrl-C cancels the call, which the server notices within a step.
template <class Reader, class Response>
void PrintStream(Client& client, grpc::ClientContext& context, Reader reader, Response response,
                 void (*at_end)(const Response& last)) {
  const Interruptible cancel([&context] { context.TryCancel(); });
  bool any = false;
  while (reader->Read(&response)) {
    any = true;
    if (client.options().json) {
      client.PrintJson(response);
    } else {
      client.Print(response.text());
    }
    if (client.is_output_lost()) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (client.is_output_lost()) return;  // which Client::CheckOutput() says at the end
  if (any && !client.options().json) client.PrintLine("");
  if (!status.ok()) return client.Fail(status);
  if (any && !client.options().json && at_end != nullptr) at_end(response);
}

void AddGenerate(CLI::App& app, Client& client) {
  struct State {
    v1::GenerateRequest request;
    ContentFlags content;
    uint32_t max_tokens = 0;
    int32_t priority = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = app.add_subcommand("generate", "continue a content once, without a session");
  AddContentFlags(*sub, state->content, true);
  AddWhole(*sub, "-n,--max-tokens", state->max_tokens, "0: the server's default");
  CLI::Option* priority = AddWhole(*sub, "--priority", state->priority, "0 to 100");
  sub->add_option("--cache-salt", *state->request.mutable_cache_salt(),
                  "share cached prefixes only with equal salts");
  AddSamplingFlags(*sub, *state->request.mutable_sampling());
  sub->callback([&client, state, priority] {
    *state->request.mutable_content() = ContentOf(state->content);
    state->request.set_max_tokens(state->max_tokens);
    if (!priority->empty()) state->request.set_priority(state->priority);
    grpc::ClientContext context;
    client.Prepare(context);
    PrintStream(
        client, context, client.decoding().Generate(&context, state->request),
        v1::GenerateResponse(),
        +[](const v1::GenerateResponse& last) { PrintUsage(last.usage()); });
  });
}

void AddDecode(CLI::App& group, Client& client) {
  struct State {
    v1::DecodeRequest request;
    ContentFlags content;
    int64_t expected = 0;
    int64_t start = 0;
    uint32_t max_tokens = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("decode", "stream the continuation, after a content or not");
  sub->add_option("session", *state->request.mutable_name(), "name or id")->required();
  AddContentFlags(*sub, state->content, true);
  AddWhole(*sub, "-n,--max-tokens", state->max_tokens, "0: the server's default");
  CLI::Option* expected = AddWhole(*sub, "--expect", state->expected,
                                   "ABORTED unless the session has this many tokens now");
  CLI::Option* start = AddWhole(*sub, "--start", state->start,
                                "first position: what was made already is replayed byte for byte");
  AddSamplingFlags(*sub, *state->request.mutable_sampling());
  sub->callback([&client, state, expected, start] {
    v1::DecodeRequest& request = state->request;
    if (state->content.given()) *request.mutable_content() = ContentOf(state->content);
    if (!expected->empty()) request.set_expected_token_count(state->expected);
    if (!start->empty()) request.set_start_position(state->start);
    request.set_max_tokens(state->max_tokens);
    request.set_name(SessionName(request.name()));
    grpc::ClientContext context;
    client.Prepare(context);
    PrintStream(
        client, context, client.sessions().Decode(&context, request), v1::DecodeResponse(),
        +[](const v1::DecodeResponse& last) { PrintUsage(last.usage()); });
  });
}

void AddRead(CLI::App& group, Client& client) {
  struct State {
    v1::ReadTokensRequest request;
    int64_t start = 0;
    int64_t count = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("read", "show tokens back, as text; --json shows the ids");
  sub->add_option("session", *state->request.mutable_name(), "name or id")->required();
  AddWhole(*sub, "--start", state->start, "first position");
  AddWhole(*sub, "--count", state->count, "how many tokens; 0: to the end");
  sub->callback([&client, state] {
    state->request.set_start_position(state->start);
    state->request.set_token_count(state->count);
    state->request.set_name(SessionName(state->request.name()));
    grpc::ClientContext context;
    client.Prepare(context);
    void (*nothing)(const v1::ReadTokensResponse&) = nullptr;
    PrintStream(client, context, client.sessions().ReadTokens(&context, state->request),
                v1::ReadTokensResponse(), nothing);
  });
}

}  // namespace

void AddStreamCommands(CLI::App& app, Client& client) {
  CLI::App& session = *app.get_subcommand("session");
  AddDecode(session, client);
  AddRead(session, client);
  AddGenerate(app, client);
}

}  // namespace cairn
