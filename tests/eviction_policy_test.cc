// Eviction by measured prices beside policies that know none, on traces that are played against a
// real BlockStore in simulated time (docs/DECISION.md has the figures of all of them).
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "tests/eviction_simulator.h"

namespace cairn {
namespace {

SimulatedMachine MachineNamed(const std::string& name) {
  const auto machines = SimulatedMachines();
  return *std::ranges::find(machines, name, &SimulatedMachine::name);
}

struct Best {
  double mean_s = 1e9;
  double p95_s = 1e9;
};

Best BestOf(std::initializer_list<EvictionPolicy> rivals, const SimulatedMachine& machine,
            const Trace& trace) {
  Best best;
  for (const EvictionPolicy policy : rivals) {
    const SimulatedOutcome outcome = Simulate(machine, trace, policy);
    best = {std::min(best.mean_s, outcome.mean_s), std::min(best.p95_s, outcome.p95_s)};
  }
  return best;
}

// Where writing costs as much as computing, and reads wait behind writes.
TEST(EvictionPolicy, ASlowDiskIsUsedForWhatPays) {
  const SimulatedMachine machine = MachineNamed("CPU, 20 MiB/s");
  for (const Trace& trace : {AgentTrace(1), DocumentTrace(1)}) {
    const SimulatedOutcome own = Simulate(machine, trace, EvictionPolicy::kPrices);
    const Best rival = BestOf({EvictionPolicy::kFixed, EvictionPolicy::kLru}, machine, trace);
    EXPECT_LE(own.mean_s, 0.85 * rival.mean_s) << trace.name;
    EXPECT_LE(own.p95_s, 0.8 * rival.p95_s) << trace.name;
  }
}

// Who is best beside it is another one in each of these.
TEST(EvictionPolicy, NowhereIsItMuchWorse) {
  struct Case {
    const char* machine;
    Trace trace;
    EvictionPolicy best_rival;
  };
  for (const auto& [name, trace, best_rival] :
       {Case{"CPU, 20 MiB/s", ChatTrace(1), EvictionPolicy::kLru},
        Case{"GPU, 5 GB/s", AgentTrace(1), EvictionPolicy::kLru},
        Case{"GPU, 5 GB/s", ScanTrace(1), EvictionPolicy::kLfu},
        Case{"GPU, 5 GB/s", PausedScanTrace(1), EvictionPolicy::kLfu},
        Case{"GPU, 5 GB/s", DocumentTrace(1), EvictionPolicy::kFixed}}) {
    const SimulatedMachine machine = MachineNamed(name);
    const SimulatedOutcome own = Simulate(machine, trace, EvictionPolicy::kPrices);
    const Best rival = BestOf({best_rival}, machine, trace);
    EXPECT_LE(own.mean_s, 1.05 * rival.mean_s) << trace.name;
    EXPECT_LE(own.p95_s, 1.05 * rival.p95_s) << trace.name;
  }
}

TEST(EvictionPolicy, ATraceGivesTheSameFiguresAgain) {
  Trace trace = ScanTrace(2);
  trace.turns.resize(60);
  const SimulatedMachine machine = MachineNamed("GPU, 5 GB/s");
  const SimulatedOutcome one = Simulate(machine, trace, EvictionPolicy::kPrices);
  const SimulatedOutcome other = Simulate(machine, trace, EvictionPolicy::kPrices);
  EXPECT_EQ(one.mean_s, other.mean_s);
  EXPECT_EQ(one.p95_s, other.p95_s);
  EXPECT_EQ(one.written_blocks, other.written_blocks);
}

}  // namespace
}  // namespace cairn
