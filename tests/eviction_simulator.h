// Plays a trace against a real BlockStore whose disk and copies take simulated time, on a machine
// that computes in simulated time: contexts come back as the planner says, one after the other.
// What it tells is the time to first token. Equal inputs give equal figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/eviction.h"
#include "offload/restore_problem.h"
#include "tests/eviction_traces.h"

namespace cairn {

struct SimulatedMachine {
  std::string name;
  PassCosts pass;
  uint32_t layers = 0;
  uint32_t device_blocks = 0;
  uint32_t host_blocks = 0;  // copied to the device before they are used
  uint32_t disk_blocks = 0;
  double host_s = 1e-6;  // of copying a block between device and host
  double disk_read_s = 0;
  double disk_write_s = 0;
  double speed = 1;  // a trace's time is divided by it
};

// A CPU with an NVMe disk, the same with a volume of 20 MiB/s, and a GPU with 50 GB/s to the host
// and a disk of 5 GB/s.
std::vector<SimulatedMachine> SimulatedMachines();

struct SimulatedOutcome {
  uint32_t turns = 0;  // most of whose context had been computed before
  double mean_s = 0;   // of their times to first token, without waiting for each other
  double p95_s = 0;
  uint64_t written_blocks = 0;
  uint64_t read_blocks = 0;
  uint64_t computed_blocks = 0;  // that had been computed before
};

SimulatedOutcome Simulate(const SimulatedMachine& machine, const Trace& trace,
                          EvictionPolicy policy);

}  // namespace cairn
