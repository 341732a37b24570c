#include "engine/what_if.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "offload/restore_planner.h"

namespace cairn {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsMax = 1e9;
constexpr double kTokensMax = 1 << 24;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// What came, short enough for a message.
std::string Shown(const Json& json) {
  const std::string text = Dump(json);
  return text.size() <= 40 ? text : text.substr(0, 40) + "...";
}

std::string NumberText(double value) {
  const bool is_count = value == std::floor(value) && value < kSecondsMax;
  return Dump(is_count ? Json(static_cast<int64_t>(value)) : Json(value));
}

// The fields of one object. Reads them one by one and remembers the first thing that is wrong.
class Fields {
 public:
  Fields(const Json& object, std::string path, Status& status)
      : object_(object), path_(std::move(path)), status_(status) {}

  std::string PathOf(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }
  void Fail(std::string_view name, const std::string& expected, const Json* got) {
    if (!status_.ok()) return;
    status_ = InvalidField(
        PathOf(name), "expected " + expected + (got ? ", got " + Shown(*got) : ", got nothing"));
  }
  const Json* Find(std::string_view name) {
    known_.insert(std::string(name));
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  // In [min, max], or in (0, max] when min is kAboveZero.
  static constexpr double kAboveZero = -1;
  double Number(std::string_view name, double min, double max,
                std::optional<double> otherwise = std::nullopt) {
    const Json* json = Find(name);
    if (json == nullptr && otherwise.has_value()) return *otherwise;
    const bool is_open = min == kAboveZero;
    if (json != nullptr && json->is_number()) {
      const double value = json->get<double>();
      if ((is_open ? value > 0 : value >= min) && value <= max) return value;
    }
    Fail(name,
         (is_open ? "a number above 0" : "a number from " + NumberText(min)) + " to " +
             NumberText(max),
         json);
    return 1;
  }
  uint32_t Count(std::string_view name, double min, double max,
                 std::optional<double> otherwise = std::nullopt) {
    const double value = Number(name, min, max, otherwise);
    if (value != std::floor(value)) Fail(name, "a whole number", Find(name));
    return static_cast<uint32_t>(value);
  }
  // False where there is none.
  bool Flag(std::string_view name) {
    const Json* json = Find(name);
    if (json == nullptr) return false;
    if (!json->is_boolean()) Fail(name, "true or false", json);
    return json->is_boolean() && json->get<bool>();
  }
  std::string Text(std::string_view name, const std::string& expected,
                   std::optional<std::string> otherwise = std::nullopt) {
    const Json* json = Find(name);
    if (json == nullptr && otherwise.has_value()) return *otherwise;
    if (json != nullptr && json->is_string()) return json->get<std::string>();
    Fail(name, expected, json);
    return "";
  }

  // After the last read: there is nothing else.
  void ExpectNoMore() {
    if (!status_.ok()) return;
    for (const auto& [name, value] : object_.items()) {
      if (known_.count(name) > 0) continue;
      std::string names;
      for (const std::string& known : known_) names += (names.empty() ? "" : ", ") + known;
      status_ = InvalidField(PathOf(name), "unknown; expected one of " + names);
      return;
    }
  }

 private:
  const Json& object_;
  const std::string path_;
  Status& status_;
  std::set<std::string> known_;
};

// Everything that a problem says.
struct WhatIf {
  std::string letters;  // of the channels, in their order
  std::vector<RestoreChannel> channels;
  std::vector<BlockSource> blocks;
  RestoreProblem problem;
  RestorePolicy policy = RestorePolicy::kCairn;
};

std::string Quoted(std::string_view letters) {
  std::string text;
  for (const char letter : letters)
    text += (text.empty() ? "\"" : ", \"") + std::string(1, letter) + "\"";
  return text.empty() ? "a channel, but there is none" : text;
}

// Following `then` from any channel ends.
void CheckWays(const WhatIf& what_if, Status& status) {
  for (uint32_t c = 0; c < what_if.channels.size() && status.ok(); ++c) {
    std::optional<uint32_t> at = c;
    for (size_t hops = 0; at.has_value(); ++hops, at = what_if.channels[*at].then) {
      if (hops < what_if.channels.size()) continue;
      status = InvalidField(std::string("channels.") + what_if.letters[c] + ".then",
                            "expected a way that ends, got one that comes back to itself");
      return;
    }
  }
}

void ReadChannels(const Json* json, double block_bytes, Fields& fields, WhatIf& what_if,
                  Status& status) {
  if (json == nullptr || !json->is_object() || json->size() > kRestoreChannelsMax) {
    return fields.Fail("channels",
                       "an object of at most " + std::to_string(kRestoreChannelsMax) + " channels",
                       json);
  }
  for (const auto& [letter, value] : json->items()) {
    const bool is_letter =
        letter.size() == 1 && letter[0] > ' ' && letter[0] < 0x7f && letter != "." && letter != "-";
    if (!is_letter || !value.is_object()) {
      return fields.Fail("channels." + letter, "one ASCII letter but . and -, and an object",
                         &value);
    }
    what_if.letters += letter;
  }
  for (const auto& [letter, value] : json->items()) {
    Fields channel(value, "channels." + letter, status);
    RestoreChannel& made = what_if.channels.emplace_back();
    made.latency_s = channel.Number("latency_s", 0, kSecondsMax);
    const double copy_s = channel.Number("per_copy_s", 0, kSecondsMax);
    const double bytes_per_s = channel.Number("bytes_per_s", Fields::kAboveZero, 1e18);
    made.block_s = copy_s + block_bytes / bytes_per_s;
    made.backlog_s = channel.Number("backlog_s", 0, kSecondsMax, 0);
    made.comes_whole = channel.Flag("comes_whole");
    if (channel.Find("then") != nullptr) {
      const std::string next = channel.Text("then", "one of " + Quoted(what_if.letters));
      const size_t at = next.size() == 1 ? what_if.letters.find(next) : std::string::npos;
      if (at == std::string::npos) {
        channel.Fail("then", "one of " + Quoted(what_if.letters), channel.Find("then"));
      } else {
        made.then = static_cast<uint32_t>(at);
      }
    }
    channel.ExpectNoMore();
    if (!(made.block_s <= kSecondsMax)) {
      channel.Fail("bytes_per_s", "a block in at most 1e9 s", channel.Find("bytes_per_s"));
    }
  }
  CheckWays(what_if, status);
}

void ReadBlocks(Fields& fields, WhatIf& what_if) {
  const std::string letters = fields.Text("blocks", "a string with a letter a block");
  if (letters.size() > kWhatIfBlocksMax) {
    const Json count = letters.size();
    return fields.Fail("blocks", "at most " + std::to_string(kWhatIfBlocksMax) + " blocks", &count);
  }
  for (size_t i = 0; i < letters.size(); ++i) {
    const size_t channel = what_if.letters.find(letters[i]);
    if (letters[i] == '.') {
      what_if.blocks.push_back(BlockSource::kDevice);
    } else if (letters[i] == '-') {
      what_if.blocks.push_back(BlockSource::kAbsent);
    } else if (channel != std::string::npos) {
      what_if.blocks.push_back(ThroughChannel(static_cast<uint32_t>(channel)));
    } else {
      const Json got = letters.substr(i, 1);
      return fields.Fail("blocks[" + std::to_string(i) + "]",
                         "one of " + Quoted(".-" + what_if.letters), &got);
    }
  }
}

void ReadExecutions(Fields& fields, RestoreProblem& problem) {
  const Json* json = fields.Find("executions");
  if (json == nullptr) return;
  problem.allows_front = problem.allows_wave = false;
  const std::string expected = "a list of \"front\" and \"wave\"";
  if (!json->is_array()) return fields.Fail("executions", expected, json);
  for (const Json& name : *json) {
    if (name == "front") {
      problem.allows_front = true;
    } else if (name == "wave") {
      problem.allows_wave = true;
    } else {
      return fields.Fail("executions", expected, json);
    }
  }
}

Status ReadProblem(const Json& json, WhatIf& what_if) {
  Status status;
  Fields fields(json, "", status);
  RestoreProblem& problem = what_if.problem;
  problem.block_tokens = fields.Count("block_tokens", 1, 1 << 16);
  const double block_bytes = fields.Number("block_bytes", Fields::kAboveZero, 1e15);
  problem.layers = fields.Count("layers", 1, 1 << 16);
  problem.new_tokens = fields.Count("new_tokens", 0, kTokensMax);
  problem.pass.pass_s = fields.Number("pass_s", 0, kSecondsMax);
  problem.pass.sweep_s = fields.Number("sweep_s", 0, kSecondsMax);
  problem.pass.token_s = fields.Number("per_token_s", 0, kSecondsMax);
  problem.pass.token_position_s = fields.Number("per_token_position_s", 0, kSecondsMax);
  problem.pass.decode_rows = fields.Count("decode_rows", 0, 1 << 20, 0);
  problem.chunk_tokens = fields.Count("chunk_tokens", 1, kTokensMax);
  if (problem.chunk_tokens < problem.block_tokens) {
    fields.Fail("chunk_tokens", "at least block_tokens", fields.Find("chunk_tokens"));
  }
  problem.compute_backlog_s = fields.Number("compute_backlog_s", 0, kSecondsMax, 0);
  problem.uncertainty = fields.Number("uncertainty", 0, 1, 0);
  problem.cut_share = fields.Number("cut_share", 0, 1, problem.cut_share);
  const std::string policies =
      "cairn, load_all, recompute_all, greedy, threshold, cake, cut or wave";
  const auto policy = ParseRestorePolicy(fields.Text("policy", policies, "cairn"));
  if (policy.has_value()) {
    what_if.policy = *policy;
  } else {
    fields.Fail("policy", policies, fields.Find("policy"));
  }
  ReadExecutions(fields, problem);
  if (fields.Find("wave_tokens_max") != nullptr) {
    problem.wave_tokens_max = fields.Count("wave_tokens_max", 1, kTokensMax);
  }
  const bool is_front =
      what_if.policy == RestorePolicy::kCake || what_if.policy == RestorePolicy::kCut;
  if (is_front && !problem.allows_front) {
    fields.Fail("executions", "\"front\", which the policy uses", fields.Find("executions"));
  }
  if (what_if.policy == RestorePolicy::kWave && !problem.allows_wave) {
    fields.Fail("executions", "\"wave\", which the policy uses", fields.Find("executions"));
  }
  ReadChannels(fields.Find("channels"), block_bytes, fields, what_if, status);
  ReadBlocks(fields, what_if);
  fields.ExpectNoMore();
  problem.channels = what_if.channels;
  problem.blocks = what_if.blocks;
  return status;
}

std::string PlanText(const WhatIf& what_if) {
  const RestorePlan plan = PlanRestore(what_if.problem, what_if.policy);
  Json recompute = Json::array();
  for (size_t i = 0; i < plan.verdicts.size(); ++i) {
    if (plan.verdicts[i] == Verdict::kRecompute) recompute.push_back(i);
  }
  Json load_order = Json::object();
  for (size_t c = 0; c < what_if.channels.size(); ++c) {
    load_order[std::string(1, what_if.letters[c])] = plan.load_order[c];
  }
  Json answer;
  answer["execution"] = NameOf(plan.execution);
  if (plan.no_wave != NoWave::kNone) answer["no_wave"] = NameOf(plan.no_wave);
  answer["recompute"] = std::move(recompute);
  answer["load_order"] = std::move(load_order);
  answer["predicted_s"] = plan.predicted_s;
  answer["load_all_s"] = plan.load_all_s;
  answer["recompute_all_s"] = plan.recompute_all_s;
  return Dump(answer);
}

// The object that a line holds, with each name once.
Result<Json> ParseObject(std::string_view text) {
  std::vector<std::set<std::string>> names;  // of the objects that the parser is in
  std::string repeated;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && repeated.empty() &&
        !names.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  try {  // the library reports by exception; this is its border
    Json json = Json::parse(text, watch);
    if (!repeated.empty()) return InvalidField(repeated, "expected once, got twice");
    if (!json.is_object()) {
      return InvalidField("line", "expected a JSON object, got " + Shown(json));
    }
    return json;
  } catch (const Json::exception& error) {
    const std::string what = error.what();
    const size_t at = what.find("] ");
    return InvalidField("line", "expected a JSON object, got " +
                                    (at == std::string::npos ? what : what.substr(at + 2)));
  }
}

std::string ErrorText(const Status& status) { return Dump(Json{{"error", status.message()}}); }

}  // namespace

std::string AnswerWhatIf(std::string_view text) {
  if (text.size() > kWhatIfBytesMax) {
    return ErrorText(InvalidField(
        "line", "expected at most " + std::to_string(kWhatIfBytesMax) + " bytes, got more"));
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return ErrorText(InvalidField("line", "expected a JSON object, got an empty line"));
  }
  const Result<Json> json = ParseObject(text);
  if (!json.ok()) return ErrorText(json.status());
  WhatIf what_if;
  if (const Status status = ReadProblem(*json, what_if); !status.ok()) return ErrorText(status);
  return PlanText(what_if);
}

}  // namespace cairn
