#include "offload/restore_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace cairn {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 8> kPolicies = {
    "cairn", "load_all", "recompute_all", "greedy", "threshold", "cake", "cut", "wave"};
constexpr std::array<std::string_view, kExecutionCount> kExecutions = {
    "none", "load_all", "recompute_all", "front", "wave"};
constexpr std::array<std::string_view, 3> kVerdicts = {"keep", "reload", "recompute"};
constexpr std::array<std::string_view, 7> kNoWaves = {
    "none", "costs_unknown", "ahead", "streams", "in_place", "shared", "nothing_to_load"};

template <class Enum, size_t N>
std::optional<Enum> Parse(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(std::distance(names.begin(), found));
}

}  // namespace

std::string_view NameOf(RestorePolicy policy) { return kPolicies.at(static_cast<size_t>(policy)); }
std::string_view NameOf(Execution execution) {
  return kExecutions.at(static_cast<size_t>(execution));
}
std::string_view NameOf(Verdict verdict) { return kVerdicts.at(static_cast<size_t>(verdict)); }
std::string_view NameOf(NoWave no_wave) { return kNoWaves.at(static_cast<size_t>(no_wave)); }

std::optional<RestorePolicy> ParseRestorePolicy(std::string_view name) {
  return Parse<RestorePolicy>(kPolicies, name);
}
std::optional<Execution> ParseExecution(std::string_view name) {
  return Parse<Execution>(kExecutions, name);
}

}  // namespace cairn
