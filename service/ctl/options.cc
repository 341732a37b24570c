#include "service/ctl/options.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "service/ctl/values.h"

namespace cairn {
namespace {

using google::protobuf::util::TimeUtil;

void SetLifetime(const std::string& text, v1::Session& session) {
  if (text == "never") return;
  const double seconds =
      ParseSeconds("--ttl", text, "90s, 15m, 2h, 7d or never", /*may_be_zero=*/false);
  const double whole = std::floor(seconds);
  const auto rest = static_cast<int64_t>(std::round((seconds - whole) * 1e9));
  *session.mutable_ttl() =
      TimeUtil::SecondsToDuration(static_cast<int64_t>(whole)) +
      TimeUtil::NanosecondsToDuration(whole == 0 ? std::max<int64_t>(rest, 1) : rest);
}

// What an option that fills this field may be called.
std::vector<std::string> NamesFor(std::string field) {
  static const std::map<std::string, std::vector<std::string>> kNames = {
      {"name", {"session", "--session"}},
      {"session_id", {"id", "--session"}},
      {"content", {"--text", "--message", "--tokens"}},
      {"content.text", {"--text"}},
      {"content.chat.messages", {"--message"}},
      {"content.tokens.ids", {"--tokens"}},
      {"ids", {"ids"}},
      {"expected_token_count", {"--expect"}},
      {"start_position", {"--start"}},
      {"token_count", {"--token-count", "token-count", "--count"}},
      {"stop_token_ids", {"--stop-token-id"}},
      {"annotations", {"--annotation"}},
  };
  field.resize(std::min(field.find('['), field.size()));  // of a list, the list
  for (const char* outer : {"session.", "sampling."}) {
    if (field.starts_with(outer)) field.erase(0, std::strlen(outer));
  }
  if (const auto found = kNames.find(field); found != kNames.end()) return found->second;
  std::ranges::replace(field, '_', '-');
  return {"--" + field};
}

}  // namespace

void AddContentFlags(CLI::App& command, ContentFlags& flags, bool positional) {
  const std::string text = positional ? "text,--text" : "--text";
  command.add_option(text, flags.text, "text, tokenized as it is; - reads standard input");
  command.add_option("-m,--message", flags.messages, "ROLE:TEXT, a chat message; repeat for more")
      ->allow_extra_args(false);
  AddTokenIds(command, "--tokens", flags.token_ids, "token ids, with commas between");
  command.add_flag("--no-generation-prompt", flags.omit_generation_prompt,
                   "do not open the assistant's turn after a user's message");
}

v1::Content ContentOf(const ContentFlags& flags) {
  v1::Content content;
  const int kinds = flags.text.has_value() + !flags.messages.empty() + !flags.token_ids.empty();
  if (kinds > 1) {
    throw CLI::ValidationError("--text, --message, --tokens", "give one of them, not several");
  }
  if (flags.text) content.set_text(TextOrStdin("--text", *flags.text));
  for (const std::string& message : flags.messages) {
    const auto [role, text] = SplitPair("--message", message, "ROLE:TEXT");
    v1::ChatMessage& added = *content.mutable_chat()->add_messages();
    added.set_role(role);
    added.set_content(TextOrStdin("--message", text));
  }
  if (content.has_chat()) {
    const std::string& last_role = content.chat().messages().rbegin()->role();
    content.mutable_chat()->set_omit_generation_prompt(
        flags.omit_generation_prompt || last_role == "system" || last_role == "assistant");
  }
  if (!flags.token_ids.empty()) {
    content.mutable_tokens()->mutable_ids()->Add(flags.token_ids.begin(), flags.token_ids.end());
  }
  return content;
}

void AddSamplingFlags(CLI::App& command, v1::SamplingParams& sampling) {
  const auto number = [&](const char* flag, void (v1::SamplingParams::*set)(float),
                          const char* help) {
    command
        .add_option_function<float>(
            flag, [&sampling, set](float x) { (sampling.*set)(x); }, help)
        ->group("Sampling");
  };
  number("--temperature", &v1::SamplingParams::set_temperature, "0 is greedy; up to 2");
  number("--top-p", &v1::SamplingParams::set_top_p, "smallest set with this probability");
  number("--min-p", &v1::SamplingParams::set_min_p, "least probability, as a part of the best");
  number("--repetition-penalty", &v1::SamplingParams::set_repetition_penalty, "1 is off");
  number("--presence-penalty", &v1::SamplingParams::set_presence_penalty, "-2 to 2");
  number("--frequency-penalty", &v1::SamplingParams::set_frequency_penalty, "-2 to 2");
  command
      .add_option_function<uint32_t>(
          "--top-k", [&sampling](uint32_t k) { sampling.set_top_k(k); },
          "the k likeliest; 0 is off")
      ->transform(AsWhole<uint32_t>())
      ->group("Sampling");
  command
      .add_option_function<uint64_t>(
          "--seed", [&sampling](uint64_t seed) { sampling.set_seed(seed); },
          "same seed, same output; drawn and reported when absent")
      ->transform(AsWhole<uint64_t>())
      ->group("Sampling");
  command
      .add_option_function<std::vector<std::string>>(
          "--stop",
          [&sampling](const std::vector<std::string>& stops) {
            sampling.mutable_stop()->Add(stops.begin(), stops.end());
          },
          "text that ends the output; repeat for more")
      ->allow_extra_args(false)
      ->group("Sampling");
  command
      .add_option_function<std::vector<uint32_t>>(
          "--stop-token-id",
          [&sampling](const std::vector<uint32_t>& ids) {
            sampling.mutable_stop_token_ids()->Add(ids.begin(), ids.end());
          },
          "token that ends the output; repeat for more")
      ->transform(AsWhole<uint32_t>())
      ->allow_extra_args(false)
      ->group("Sampling");
  command
      .add_flag_function(
          "--ignore-eos", [&sampling](int64_t) { sampling.set_ignore_eos(true); },
          "do not stop at the model's end token")
      ->group("Sampling");
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias",
          [&sampling](const std::vector<std::string>& pairs) {
            for (const std::string& pair : pairs) {
              const auto [id, bias] = ParseBias("--logit-bias", pair);
              (*sampling.mutable_logit_bias())[id] = bias;
            }
          },
          "TOKEN_ID=BIAS; repeat for more")
      ->allow_extra_args(false)
      ->group("Sampling");
  command
      .add_option_function<uint32_t>(
          "--logprobs", [&sampling](uint32_t count) { sampling.set_logprobs(count); },
          "alternatives a token, shown with --json")
      ->transform(AsWhole<uint32_t>())
      ->group("Sampling");
}

void AddSettingFlags(CLI::App& command, v1::Session& session, std::vector<std::string>& given) {
  const auto setting = [&](const char* flag, const char* field, auto set, const char* help) {
    return command
        .add_option_function<std::string>(
            flag,
            [&given, field, set](const std::string& value) {
              set(value);
              given.push_back(field);
            },
            help)
        ->group("Settings");
  };
  setting(
      "--display-name", "display_name",
      [&](const std::string& value) { session.set_display_name(value); }, "for people");
  CLI::Option* ttl = setting(
      "--ttl", "ttl", [&](const std::string& value) { SetLifetime(value, session); },
      "expires this long after its last use: 90s, 15m, 2h, 7d, never");
  setting(
      "--expire-time", "expire_time",
      [&](const std::string& value) {
        if (!TimeUtil::FromString(value, session.mutable_expire_time())) {
          throw CLI::ValidationError("--expire-time",
                                     "expected 2030-01-31T12:00:00Z, got " + value);
        }
      },
      "expires at this moment: 2030-01-31T12:00:00Z")
      ->excludes(ttl);
  command
      .add_option_function<int32_t>(
          "--priority",
          [&](int32_t priority) {
            session.set_priority(priority);
            given.push_back("priority");
          },
          "0 to 100; the lowest loses its place first")
      ->transform(AsWhole<int32_t>())
      ->group("Settings");
  command
      .add_flag_function(
          "--pinned,!--no-pinned",
          [&](int64_t count) {
            session.set_pinned(count > 0);
            given.push_back("pinned");
          },
          "keep on the device")
      ->group("Settings");
  command
      .add_option_function<std::vector<std::string>>(
          "--annotation",
          [&](const std::vector<std::string>& pairs) {
            for (const std::string& pair : pairs) {
              const auto [key, value] = SplitPair("--annotation", pair, "KEY=VALUE");
              (*session.mutable_annotations())[key] = value;
            }
            given.push_back("annotations");
          },
          "KEY=VALUE, your own; repeat for more")
      ->allow_extra_args(false)
      ->group("Settings");
  AddSamplingFlags(command, *session.mutable_sampling());
}

std::string SessionName(const std::string& name_or_id) {
  return name_or_id.find('/') == std::string::npos ? "sessions/" + name_or_id : name_or_id;
}

std::string FlagOf(const CLI::App& command, const std::string& field) {
  const CLI::Option* found = nullptr;  // the first that was given, else the first that there is
  for (const std::string& name : NamesFor(field)) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr || (found != nullptr && (!found->empty() || option->empty()))) continue;
    found = option;
  }
  if (found == nullptr) return "";
  return found->get_lnames().empty() ? "<" + found->get_name() + ">"
                                     : "--" + found->get_lnames().front();
}

}  // namespace cairn
