// cairnctl: every call of a Cairn server from the shell, and a chat in the terminal.
#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/utf8.h"
#include "service/ctl/chat.h"
#include "service/ctl/commands.h"
#include "service/ctl/interrupt.h"
#include "service/ctl/options.h"
#include "service/ctl/values.h"

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
    "Exit codes: 0 done, 1 the server refused or the output was lost, 2 wrong usage, 3 no server "
    "or\n"
    "no answer in time, 130 Ctrl-C.\n";

void AddChat(CLI::App& app, Client& client) {
  const auto options = std::make_shared<ChatOptions>();
  CLI::App* sub =
      app.add_subcommand("chat", "talk in this terminal; /help there lists its commands");
  sub->add_option("--session", options->session, "name or id, made if it is not there");
  sub->add_option("--system", options->system, "first message of a new session");
  AddWhole(*sub, "-n,--max-tokens", options->max_tokens, "of one answer; 0: the server's default");
  AddSamplingFlags(*sub, options->sampling);
  sub->callback([&client, options] { Chat(client, *options).Run(); });
}

// The command that was given, of those below `app`.
const CLI::App& GivenCommand(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : GivenCommand(*given.front());
}

// Also of a command line that cannot be parsed, of which the error is JSON too.
bool IsJsonAsked(int argc, char** argv) {
  char** const end = std::find(argv, argv + argc, std::string_view("--"));
  return std::find(argv, end, std::string_view("--json")) != end;
}

// What is wrong with a word that no string of Protobuf can hold; empty when all can be held.
std::string NotUtf8(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::optional<size_t> at = FindInvalidUtf8(word);
    if (!at) continue;
    const size_t equals = word.find('=');
    const bool names_flag = word.starts_with("--") && equals < *at;
    const std::string_view flag =
        names_flag ? word.substr(0, equals) : std::string_view(argv[i - 1]);
    const std::string name =
        flag.starts_with("-") ? std::string(flag) : "argument " + std::to_string(i);
    return name + ": is not UTF-8 from byte " +
           std::to_string(*at - (names_flag ? equals + 1 : 0)) + " on";
  }
  return "";
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
  app.add_option("--address", options.address, "of the server")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](const std::string& address) {
            return std::string(address.empty() ? "expected HOST:PORT, got \"\"" : "");
          },
          ""));
  app.add_flag("--json", options.json, "answers and errors as JSON, one object a line");
  AddSeconds(app, "--timeout", options.timeout_seconds, "seconds for each call; 0: no limit");
  AddSessionCommands(app, client);
  AddStreamCommands(app, client);
  AddServerCommands(app, client);
  AddChat(app, client);
  AddPlanRestore(app);
  app.footer(kExamples);  // after the commands, which would have inherited it
  options.json = IsJsonAsked(argc, argv);
  if (const std::string wrong = NotUtf8(argc, argv); !wrong.empty()) {
    client.FailUsage(wrong);
    return client.exit_code();
  }
  try {  // CLI11 reports by exception; this is its border
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help and --version
    std::ostringstream text;
    app.exit(asked, text);
    client.Print(text.str());
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || unknown.empty()) {
      client.FailUsage(std::string(error.what()) + " (--help says how it is used)");
    } else {
      client.FailUsage("there is no " + unknown.front() + "; --help lists the commands");
    }
  }
  client.CheckOutput();
  return client.exit_code();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
