#include "service/ctl/values.h"

#include <cmath>
#include <iostream>
#include <iterator>
#include <map>
#include <utility>

#include "engine/utf8.h"

namespace cairn {
namespace {

CLI::ValidationError Unexpected(const std::string& flag, const std::string& form,
                                const std::string& word) {
  return CLI::ValidationError(flag, "expected " + form + ", got \"" + word + "\"");
}

}  // namespace

CLI::Option* AddTokenIds(CLI::App& command, const std::string& name, std::vector<uint32_t>& ids,
                         const std::string& help) {
  return command
      .add_option_function<std::vector<std::string>>(
          name,
          [&ids, name](const std::vector<std::string>& words) {
            for (const std::string& word : words) {
              for (size_t at = 0; at <= word.size();) {
                const size_t comma = std::min(word.find(',', at), word.size());
                const auto id = ParseWhole<uint32_t>(std::string_view(word).substr(at, comma - at));
                if (!id) throw Unexpected(name, "token ids with commas between, as in 1,2,3", word);
                ids.push_back(*id);
                at = comma + 1;
              }
            }
          },
          help)
      ->allow_extra_args(false);  // with them CLI11 reads brackets, and drops what is empty in them
}

double ParseSeconds(const std::string& flag, const std::string& text, const std::string& form,
                    bool may_be_zero) {
  static const std::map<std::string, double> kUnitSeconds = {
      {"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = kUnitSeconds.find(std::string(end, text.data() + text.size()));
  if (error == std::errc::invalid_argument || unit == kUnitSeconds.end()) {
    throw Unexpected(flag, form, text);
  }
  const double seconds = number * unit->second;
  const bool is_low = seconds < 0 || (seconds == 0 && !may_be_zero);
  if (error != std::errc() || std::isnan(seconds) || is_low || seconds > kDurationSecondsMax) {
    throw CLI::ValidationError(flag, std::string("must be ") +
                                         (may_be_zero ? "0 or above" : "above 0") +
                                         " and at most 315,576,000,000 s, got " + text);
  }
  return seconds;
}

CLI::Option* AddSeconds(CLI::App& command, const std::string& name, double& seconds,
                        const std::string& help) {
  return command
      .add_option_function<std::string>(
          name,
          [&seconds, name](const std::string& text) {
            seconds = ParseSeconds(name, text, "seconds, or 90s, 15m, 2h or 7d", true);
          },
          help)
      ->default_str("0");
}

std::pair<uint32_t, float> ParseBias(const std::string& flag, const std::string& pair) {
  const std::string form = "ID=BIAS, " + WholeNumberOf<uint32_t>() + " and a number";
  const auto [id_word, bias_word] = SplitPair(flag, pair, form);
  const std::optional<uint32_t> id = ParseWhole<uint32_t>(id_word);
  float bias = 0;
  const char* const bias_end = bias_word.data() + bias_word.size();
  const auto [end, error] = std::from_chars(bias_word.data(), bias_end, bias);
  if (!id || error != std::errc() || end != bias_end || !std::isfinite(bias)) {
    throw Unexpected(flag, form, pair);
  }
  return {*id, bias};
}

std::pair<std::string, std::string> SplitPair(const std::string& flag, const std::string& pair,
                                              const std::string& form) {
  const size_t at = pair.find(form[form.find_first_of(":=")]);
  if (at == std::string::npos || at == 0) throw Unexpected(flag, form, pair);
  return {pair.substr(0, at), pair.substr(at + 1)};
}

std::string TextOrStdin(const std::string& flag, const std::string& text) {
  if (text != "-") return text;
  std::string input(std::istreambuf_iterator<char>(std::cin), {});
  if (const std::optional<size_t> at = FindInvalidUtf8(input)) {
    throw CLI::ValidationError(
        flag, "standard input is not UTF-8 from byte " + std::to_string(*at) + " on");
  }
  return input;
}

}  // namespace cairn
