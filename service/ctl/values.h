// What words of the command line say: whole numbers, durations, token ids, text. A word is read to
// its last character and must be in range. Errors are CLI::ValidationError, which names the flag,
// what it takes and what it got. Pure functions, except for TextOrStdin.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// What protobuf's Duration can hold: ten thousand years.
inline constexpr double kDurationSecondsMax = 315'576'000'000;

// Nothing when `word` is no whole number or does not fit.
template <class T>
std::optional<T> ParseWhole(std::string_view word) {
  T value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// "a whole number in 0..4294967295".
template <class T>
std::string WholeNumberOf() {
  return "a whole number in " + std::to_string(std::numeric_limits<T>::min()) + ".." +
         std::to_string(std::numeric_limits<T>::max());
}

// Leaves CLI11 a number that it cannot misread: by itself it takes 010 for 8, -1 for 2^64 - 1, and
// the largest number for whatever is larger.
template <class T>
CLI::Validator AsWhole() {
  const auto check = [](std::string& word) {
    const std::optional<T> value = ParseWhole<T>(word);
    if (!value) return "expected " + WholeNumberOf<T>() + ", got \"" + word + "\"";
    word = std::to_string(*value);
    return std::string();
  };
  return CLI::Validator(check, "");
}

template <class T>
CLI::Option* AddWhole(CLI::App& command, const std::string& name, T& value,
                      const std::string& help) {
  return command.add_option(name, value, help)->transform(AsWhole<T>());
}

// "1,2,3", in one word or several; there is at least one, and none is left out.
CLI::Option* AddTokenIds(CLI::App& command, const std::string& name, std::vector<uint32_t>& ids,
                         const std::string& help);

// Seconds of a number, alone or with s, m, h or d behind it: above 0, or 0 too, and at most
// kDurationSecondsMax. `form` is what the error says was expected.
double ParseSeconds(const std::string& flag, const std::string& text, const std::string& form,
                    bool may_be_zero);

// An option of which 0 is the default and means none.
CLI::Option* AddSeconds(CLI::App& command, const std::string& name, double& seconds,
                        const std::string& help);

// A token id and a finite number, of "ID=BIAS".
std::pair<uint32_t, float> ParseBias(const std::string& flag, const std::string& pair);

// Splits a pair at the character that separates the words of `form`, as in "KEY=VALUE".
std::pair<std::string, std::string> SplitPair(const std::string& flag, const std::string& pair,
                                              const std::string& form);

// `text`, or all of standard input where that is "-", which must be UTF-8 as every word is.
std::string TextOrStdin(const std::string& flag, const std::string& text);

}  // namespace cairn
