// cairnctl: every call of a Cairn server from the shell, and a chat in the terminal.
#include <memory>
#include <string>
#include <vector>

#include "service/ctl/chat.h"
#include "service/ctl/commands.h"
#include "service/ctl/interrupt.h"
#include "service/ctl/options.h"

namespace cairn {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  cairnctl generate -n 32 --temperature 0 \"The capital of France is\"\n"
    "  cairnctl session create trip -m \"system:You are brief.\"\n"
    "  cairnctl session decode trip -m \"user:Name three rivers.\"\n"
    "  cairnctl session fork trip trip-2\n"
    "  cairnctl session read trip --start 10\n"
    "  cairnctl --json session get trip\n"
    "  cairnctl chat --session trip\n"
    "  cairnctl plan-restore < problems.jsonl\n"
    "\n"
    "Exit codes: 0 done, 1 the server refused, 2 wrong usage, 3 no server or no answer in time, "
    "130 Ctrl-C.\n";

void AddChat(CLI::App& app, Client& client) {
  const auto options = std::make_shared<ChatOptions>();
  CLI::App* sub =
      app.add_subcommand("chat", "talk in this terminal; /help there lists its commands");
  sub->add_option("--session", options->session, "name or id, made if it is not there");
  sub->add_option("--system", options->system, "first message of a new session");
  sub->add_option("-n,--max-tokens", options->max_tokens, "of one answer; 0: the server's default");
  AddSamplingFlags(*sub, options->sampling);
  sub->callback([&client, options] { Chat(client, *options).Run(); });
}

// The command that was given, of those below `app`.
const CLI::App& GivenCommand(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : GivenCommand(*given.front());
}

int Main(int argc, char** argv) {
  StartWaitingForInterrupts();
  CLI::App app("Every call of a Cairn server from the shell, and a chat in the terminal.",
               "cairnctl");
  ClientOptions options;
  Client client(options,
                [&app](const std::string& field) { return FlagOf(GivenCommand(app), field); });
  app.footer("For every command: --address, --json and --timeout; see cairnctl --help.");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", "cairnctl " CAIRN_VERSION);
  app.add_option("--address", options.address, "of the server")->capture_default_str();
  app.add_flag("--json", options.json, "answers and errors as JSON, one object a line");
  app.add_option("--timeout", options.timeout_seconds, "seconds for each call; 0: no limit")
      ->capture_default_str();
  AddSessionCommands(app, client);
  AddStreamCommands(app, client);
  AddServerCommands(app, client);
  AddChat(app, client);
  AddPlanRestore(app);
  app.footer(kExamples);  // after the commands, which would have inherited it
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11 reports by exception; this is its border
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || unknown.empty()) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    client.FailUsage("there is no " + unknown.front() + "; --help lists the commands");
  }
  return client.exit_code();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
