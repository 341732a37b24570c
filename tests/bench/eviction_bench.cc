// Time to first token of contexts that come back, by eviction policy, on traces and machines that
// are simulated: each policy's figures over those of measured prices.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "tests/eviction_simulator.h"

namespace cairn {
namespace {

constexpr std::array<std::pair<EvictionPolicy, std::string_view>, 5> kPolicies = {
    {{EvictionPolicy::kPrices, "prices"},
     {EvictionPolicy::kFixed, "fixed prices"},
     {EvictionPolicy::kLru, "LRU"},
     {EvictionPolicy::kFifo, "FIFO"},
     {EvictionPolicy::kLfu, "LFU"}}};

void Run(const SimulatedMachine& machine, const Trace& trace) {
  std::printf("%s, %s\n", trace.name.c_str(), machine.name.c_str());
  SimulatedOutcome own;
  for (const auto& [policy, name] : kPolicies) {
    const SimulatedOutcome outcome = Simulate(machine, trace, policy);
    if (policy == EvictionPolicy::kPrices) own = outcome;
    std::printf(
        "  %-13s %5u turns  mean %8.1f ms (%.2f)  p95 %8.1f ms (%.2f)  written %6llu  "
        "read %6llu  computed again %6llu\n",
        std::string(name).c_str(), outcome.turns, outcome.mean_s * 1e3, outcome.mean_s / own.mean_s,
        outcome.p95_s * 1e3, outcome.p95_s / own.p95_s,
        static_cast<unsigned long long>(outcome.written_blocks),
        static_cast<unsigned long long>(outcome.read_blocks),
        static_cast<unsigned long long>(outcome.computed_blocks));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc > 3 || (argc > 1 && argv[1][0] == '-')) {
    std::fprintf(stderr, "usage: eviction_bench [SEED [MACHINE]]\n");
    return 2;
  }
  const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const std::string_view only = argc > 2 ? argv[2] : "";
  for (const cairn::SimulatedMachine& machine : cairn::SimulatedMachines()) {
    if (machine.name.find(only) == std::string::npos) continue;
    for (const cairn::Trace& trace :
         {cairn::AgentTrace(seed), cairn::ChatTrace(seed), cairn::ScanTrace(seed),
          cairn::PausedScanTrace(seed), cairn::DocumentTrace(seed)}) {
      cairn::Run(machine, trace);
    }
  }
}
