// The tokenizer, the cache, the model and the server's health.
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "service/ctl/commands.h"
#include "service/ctl/options.h"
#include "service/ctl/text.h"
#include "service/ctl/values.h"

namespace cairn {
namespace {

using Cache = v1::CacheService::StubInterface;
using Decoding = v1::DecodeService::StubInterface;

const std::map<std::string, v1::Tier> kTiers = {{"all", v1::TIER_UNSPECIFIED},
                                                {"device", v1::TIER_DEVICE},
                                                {"host", v1::TIER_HOST},
                                                {"disk", v1::TIER_DISK},
                                                {"remote", v1::TIER_REMOTE}};

void AddTokenizer(CLI::App& app, Client& client) {
  const auto content = std::make_shared<ContentFlags>();
  CLI::App* tokenize = app.add_subcommand("tokenize", "the token ids of a content");
  AddContentFlags(*tokenize, *content, true);
  tokenize->callback([&client, content] {
    v1::TokenizeRequest request;
    *request.mutable_content() = ContentOf(*content);
    const auto text = [](const v1::TokenizeResponse& response) {
      std::string ids;
      for (const uint32_t id : response.ids()) ids += (ids.empty() ? "" : ",") + std::to_string(id);
      return ids;
    };
    client.Call(client.decoding(), &Decoding::Tokenize, request, text);
  });

  const auto ids = std::make_shared<std::vector<uint32_t>>();
  CLI::App* detokenize = app.add_subcommand("detokenize", "the text of token ids");
  AddTokenIds(*detokenize, "ids", *ids, "with commas between")->required();
  detokenize->callback([&client, ids] {
    v1::DetokenizeRequest request;
    request.mutable_ids()->Add(ids->begin(), ids->end());
    const auto text = [](const v1::DetokenizeResponse& response) { return response.text(); };
    client.Call(client.decoding(), &Decoding::Detokenize, request, text);
  });
}

void AddLookup(CLI::App& group, Client& client) {
  struct State {
    v1::LookupPrefixRequest request;
    ContentFlags content;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("lookup", "how much of a content is held, by tier");
  AddContentFlags(*sub, state->content, true);
  sub->add_option("--cache-salt", *state->request.mutable_cache_salt(), "as the requests have it");
  sub->callback([&client, state] {
    *state->request.mutable_content() = ContentOf(state->content);
    client.Call(client.cache(), &Cache::LookupPrefix, state->request, LookupText);
  });
}

void AddExplain(CLI::App& group, Client& client) {
  struct State {
    std::string name;
    bool last = false;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = group.add_subcommand("explain", "how a session would come back now, and why");
  sub->add_option("session", state->name, "name or id")->required();
  sub->add_flag("--last", state->last, "the last restore that was carried out");
  sub->callback([&client, state] {
    v1::ExplainRestoreRequest request;
    request.set_name(SessionName(state->name));
    request.set_last(state->last);
    client.Call(client.cache(), &Cache::ExplainRestore, request, RestoreText);
  });
}

void AddCache(CLI::App& app, Client& client) {
  CLI::App& group = *app.add_subcommand("cache", "the KV blocks and their tiers");
  group.require_subcommand(1);
  AddLookup(group, client);
  AddExplain(group, client);
  group.add_subcommand("stats", "what each tier holds")->callback([&client] {
    client.Call(client.cache(), &Cache::GetCacheStats, v1::GetCacheStatsRequest(), CacheStatsText);
  });

  const auto tier = std::make_shared<v1::Tier>(v1::TIER_UNSPECIFIED);
  CLI::App* clear = group.add_subcommand("clear", "drop cached blocks; sessions stay");
  clear->add_option("--tier", *tier, "all, device, host, disk or remote")
      ->transform(CLI::CheckedTransformer(kTiers));
  clear->callback([&client, tier] {
    v1::ClearCacheRequest request;
    request.set_tier(*tier);
    const auto text = [](const google::protobuf::Empty&) { return std::string("cleared"); };
    client.Call(client.cache(), &Cache::ClearCache, request, text);
  });
}

// One call of grpc.health.v1.Health/Check. Its messages have one field each, the service's name and
// an enum, so they are written and read as the unknown fields of an empty message.
grpc::Status CheckHealth(Client& client, const std::string& service, bool& serving) {
  constexpr uint64_t kServing = 1;
  grpc::TemplatedGenericStub<google::protobuf::Empty, google::protobuf::Empty> stub(
      client.channel());
  grpc::ClientContext context;
  client.Prepare(context);
  google::protobuf::Empty request, response;
  if (!service.empty()) {
    request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1, service);
  }
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  grpc::Status status = done.get_future().get();
  const auto& fields = response.GetReflection()->GetUnknownFields(response);
  serving = status.ok() && fields.field_count() == 1 && fields.field(0).number() == 1 &&
            fields.field(0).varint() == kServing;
  return status;
}

void AddHealth(CLI::App& app, Client& client) {
  struct State {
    std::string service;
    double wait_seconds = 0;
  };
  const auto state = std::make_shared<State>();
  CLI::App* sub = app.add_subcommand("health", "whether the server serves; exit code 0 if so");
  sub->add_option("service", state->service, "a part of the server; default: all of it");
  AddSeconds(*sub, "--wait", state->wait_seconds, "seconds to wait until it serves");
  sub->callback([&client, state] {
    const auto give_up =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(state->wait_seconds);
    bool serving = false;
    grpc::Status status = CheckHealth(client, state->service, serving);
    while (!serving && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      client.channel()->GetState(/*try_to_connect=*/true);
      status = CheckHealth(client, state->service, serving);
    }
    if (status.ok() && !serving)
      status = {grpc::StatusCode::UNAVAILABLE, "the server is not ready"};
    if (!status.ok()) return client.Fail(status);
    client.PrintLine(client.options().json ? R"({"status":"SERVING"})" : "serving");
  });
}

}  // namespace

void AddServerCommands(CLI::App& app, Client& client) {
  AddTokenizer(app, client);
  AddCache(app, client);
  CLI::App& model = *app.add_subcommand("model", "what is served");
  model.require_subcommand(1);
  model.add_subcommand("get", "name, shape and fingerprint")->callback([&client] {
    client.Call(client.model(), &v1::ModelService::StubInterface::GetModel, v1::GetModelRequest(),
                ModelText);
  });
  AddHealth(app, client);
}

}  // namespace cairn
