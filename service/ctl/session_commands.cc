// The unary RPCs of SessionService. A request lives in a shared_ptr, from the flags that fill it to
// the call.
#include <memory>
#include <utility>

#include "service/ctl/commands.h"
#include "service/ctl/options.h"
#include "service/ctl/text.h"
#include "service/ctl/values.h"

namespace cairn {
namespace {

using Service = v1::SessionService::StubInterface;

// A request of which only a session's name is asked.
template <class Request, class Response, class Text>
void AddByName(CLI::App& group, Client& client, const char* command, const char* help,
               grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Response*),
               Text text) {
  const auto name = std::make_shared<std::string>();
  CLI::App* sub = group.add_subcommand(command, help);
  sub->add_option("session", *name, "name or id")->required();
  sub->callback([&client, name, method, text] {
    Request request;
    request.set_name(SessionName(*name));
    client.Call(client.sessions(), method, request, text);
  });
}

// A session's settings as flags, and the names of those that were given.
struct Settings {
  v1::Session session;
  std::vector<std::string> given;

  // The sampling defaults are one field, whichever of them was given.
  void Finish() {
    if (session.sampling().ByteSizeLong() == 0) {
      session.clear_sampling();
    } else {
      given.push_back("sampling");
    }
  }
};

void AddCreate(CLI::App& group, Client& client) {
  struct State {
    v1::CreateSessionRequest request;
    Settings settings;
    ContentFlags content;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("create", "make a session, with a first content or empty");
  sub->add_option("id", *state->request.mutable_session_id(), "a-z, 0-9 and -; minted when absent");
  sub->add_option("--cache-salt", *state->settings.session.mutable_cache_salt(),
                  "share cached prefixes only with equal salts");
  AddContentFlags(*sub, state->content, false);
  AddSettingFlags(*sub, state->settings.session, state->settings.given);
  sub->callback([&client, state] {
    state->settings.Finish();
    *state->request.mutable_session() = state->settings.session;
    if (state->content.given()) *state->request.mutable_content() = ContentOf(state->content);
    client.Call(client.sessions(), &Service::CreateSession, state->request, SessionText);
  });
}

void AddUpdate(CLI::App& group, Client& client) {
  const auto settings = std::make_shared<Settings>();
  CLI::App* sub = group.add_subcommand("update", "change the settings that are given");
  sub->add_option("session", *settings->session.mutable_name(), "name or id")->required();
  sub->add_option("--etag", *settings->session.mutable_etag(), "only if the session still has it");
  AddSettingFlags(*sub, settings->session, settings->given);
  sub->callback([&client, settings] {
    settings->Finish();
    v1::UpdateSessionRequest request;
    *request.mutable_session() = settings->session;
    request.mutable_session()->set_name(SessionName(settings->session.name()));
    for (const std::string& field : settings->given)
      request.mutable_update_mask()->add_paths(field);
    client.Call(client.sessions(), &Service::UpdateSession, request, SessionText);
  });
}

// Every page, or the one that was asked for.
void List(Client& client, v1::ListSessionsRequest request, bool one_page) {
  bool is_first = true;
  do {
    grpc::ClientContext context;
    client.Prepare(context);
    v1::ListSessionsResponse response;
    const grpc::Status status = client.sessions().ListSessions(&context, request, &response);
    if (!status.ok()) return client.Fail(status);
    request.set_page_token(response.next_page_token());
    if (client.options().json) {
      client.PrintJson(response);
      continue;
    }
    if (std::exchange(is_first, false)) client.PrintLine(SessionRowTitles());
    for (const v1::Session& session : response.sessions()) client.PrintLine(SessionRow(session));
    if (one_page && !response.next_page_token().empty()) {
      client.PrintLine("next: --page-token " + response.next_page_token());
    }
  } while (!one_page && !request.page_token().empty());
}

void AddList(CLI::App& group, Client& client) {
  struct State {
    v1::ListSessionsRequest request;
    int32_t page_size = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("list", "all sessions by name, or one page of them");
  CLI::Option* size = AddWhole(*sub, "--page-size", state->page_size, "one page of this size");
  CLI::Option* token = sub->add_option("--page-token", *state->request.mutable_page_token(),
                                       "the page after, as the last page named it");
  sub->callback([&client, state, size, token] {
    state->request.set_page_size(state->page_size);
    List(client, state->request, !size->empty() || !token->empty());
  });
}

void AddFork(CLI::App& group, Client& client) {
  struct State {
    v1::ForkSessionRequest request;
    int64_t token_count = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("fork", "a new session with the first tokens of another");
  sub->add_option("session", *state->request.mutable_name(), "name or id")->required();
  sub->add_option("id", *state->request.mutable_session_id(), "of the new one; minted when absent");
  CLI::Option* count =
      AddWhole(*sub, "--token-count", state->token_count, "how many; default: all");
  sub->callback([&client, state, count] {
    if (!count->empty()) state->request.set_token_count(state->token_count);
    state->request.set_name(SessionName(state->request.name()));
    client.Call(client.sessions(), &Service::ForkSession, state->request, SessionText);
  });
}

void AddTruncate(CLI::App& group, Client& client) {
  struct State {
    v1::TruncateSessionRequest request;
    int64_t token_count = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("truncate", "forget every token from a position on");
  sub->add_option("session", *state->request.mutable_name(), "name or id")->required();
  AddWhole(*sub, "token-count", state->token_count, "how many tokens stay")->required();
  sub->callback([&client, state] {
    state->request.set_token_count(state->token_count);
    state->request.set_name(SessionName(state->request.name()));
    client.Call(client.sessions(), &Service::TruncateSession, state->request, SessionText);
  });
}

void AddAppend(CLI::App& group, Client& client) {
  struct State {
    v1::AppendContentRequest request;
    ContentFlags content;
    int64_t expected = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("append", "put content at the end");
  sub->add_option("session", *state->request.mutable_name(), "name or id")->required();
  AddContentFlags(*sub, state->content, true);
  CLI::Option* expected = AddWhole(*sub, "--expect", state->expected,
                                   "ABORTED unless the session has this many tokens now");
  sub->callback([&client, state, expected] {
    *state->request.mutable_content() = ContentOf(state->content);
    if (!expected->empty()) state->request.set_expected_token_count(state->expected);
    state->request.set_name(SessionName(state->request.name()));
    const auto text = [](const v1::AppendContentResponse& response) {
      return std::to_string(response.appended_token_count()) + " tokens appended, " +
             std::to_string(response.token_count()) + " in all";
    };
    client.Call(client.sessions(), &Service::AppendContent, state->request, text);
  });
}

void AddSuspend(CLI::App& group, Client& client) {
  struct State {
    std::string name;
    std::string tier = "host";
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("suspend", "leave the device now");
  sub->add_option("session", state->name, "name or id")->required();
  sub->add_option("--tier", state->tier, "how far down: host, disk or absent")
      ->check(CLI::IsMember({"host", "disk", "absent"}))
      ->capture_default_str();
  sub->callback([&client, state] {
    v1::SuspendSessionRequest request;
    request.set_name(SessionName(state->name));
    request.set_tier(state->tier == "host"   ? v1::TIER_HOST
                     : state->tier == "disk" ? v1::TIER_DISK
                                             : v1::TIER_ABSENT);
    client.Call(client.sessions(), &Service::SuspendSession, request, SessionText);
  });
}

}  // namespace

void AddSessionCommands(CLI::App& app, Client& client) {
  CLI::App& group = *app.add_subcommand("session", "long-lived conversations");
  group.require_subcommand(1);
  const auto deleted = [](const google::protobuf::Empty&) { return std::string("deleted"); };
  AddCreate(group, client);
  AddByName(group, client, "get", "show a session", &Service::GetSession, SessionText);
  AddList(group, client);
  AddUpdate(group, client);
  AddByName(group, client, "delete", "forget a session", &Service::DeleteSession, deleted);
  AddFork(group, client);
  AddTruncate(group, client);
  AddAppend(group, client);
  AddSuspend(group, client);
  AddByName(group, client, "prefetch",
            "begin to come back to the device before it is asked for; does not wait",
            &Service::PrefetchSession, SessionText);
}

}  // namespace cairn
