#include "tests/eviction_traces.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace cairn {
namespace {

uint32_t Between(Rng& rng, uint32_t low, uint32_t high) {
  return low + static_cast<uint32_t>(rng.Below(high - low + 1));
}

double LogBetween(Rng& rng, double low, double high) {
  return low * std::pow(high / low, rng.Uniform());
}

constexpr uint32_t kSessions = 12;  // that come back among scans

void SortByTime(Trace& trace) { std::ranges::stable_sort(trace.turns, {}, &TraceTurn::at_s); }

}  // namespace

Trace AgentTrace(uint64_t seed) {
  Rng rng(seed);
  Trace trace{.name = "agents"};
  uint32_t conversation = 0;
  for (uint32_t agent = 0; agent < 10; ++agent) {
    double at = 20 * rng.Uniform();
    while (at < 600) {
      const uint32_t calls = Between(rng, 8, 30);
      ++conversation;
      for (uint32_t call = 0; call < calls; ++call) {
        trace.turns.push_back(
            {.at_s = at,
             .conversation = conversation,
             .prefix = 1,
             .prefix_tokens = 512,
             .input_tokens = call == 0 ? Between(rng, 300, 1500) : Between(rng, 50, 500),
             .output_tokens = Between(rng, 20, 150)});
        const uint64_t kind = rng.Below(20);
        at += kind == 0  ? LogBetween(rng, 60, 300)
              : kind < 6 ? LogBetween(rng, 5, 30)
                         : LogBetween(rng, 1, 5);
      }
      at += LogBetween(rng, 1, 20);
    }
  }
  SortByTime(trace);
  return trace;
}

Trace ChatTrace(uint64_t seed) {
  Rng rng(seed);
  Trace trace{.name = "chat"};
  uint32_t conversation = 0;
  for (uint32_t user = 0; user < 30; ++user) {
    double at = 200 * rng.Uniform();
    while (at < 2400) {
      const uint32_t turns = Between(rng, 3, 20);
      ++conversation;
      for (uint32_t turn = 0; turn < turns; ++turn) {
        trace.turns.push_back({.at_s = at,
                               .conversation = conversation,
                               .prefix = 1,
                               .prefix_tokens = 256,
                               .input_tokens = Between(rng, 20, 300),
                               .output_tokens = Between(rng, 50, 300)});
        at += LogBetween(rng, 10, 600);
      }
      at += LogBetween(rng, 60, 900);
    }
  }
  SortByTime(trace);
  return trace;
}

Trace ScanTrace(uint64_t seed) {
  Rng rng(seed);
  Trace trace{.name = "scans"};
  for (uint32_t session = 0; session < kSessions; ++session) {
    const uint32_t first = Between(rng, 1000, 4000);
    bool is_first = true;
    for (double at = 40 * rng.Uniform(); at < 1500; at += LogBetween(rng, 20, 120)) {
      trace.turns.push_back({.at_s = at,
                             .conversation = session,
                             .input_tokens = is_first ? first : Between(rng, 20, 100),
                             .output_tokens = Between(rng, 20, 60)});
      is_first = false;
    }
  }
  uint32_t document = kSessions;
  for (double at = 0; at < 1500; at += LogBetween(rng, 2, 20)) {
    trace.turns.push_back({.at_s = at,
                           .conversation = document++,
                           .input_tokens = Between(rng, 800, 4000),
                           .output_tokens = Between(rng, 20, 60)});
  }
  SortByTime(trace);
  return trace;
}

Trace PausedScanTrace(uint64_t seed) {
  Trace trace = ScanTrace(seed);
  trace.name = "paused scans";
  for (TraceTurn& turn : trace.turns) {
    if (turn.conversation < kSessions && turn.at_s > 700) turn.at_s += 400;
  }
  SortByTime(trace);
  return trace;
}

Trace DocumentTrace(uint64_t seed) {
  Rng rng(seed);
  Trace trace{.name = "documents"};
  constexpr uint32_t kDocuments = 60;
  std::vector<uint32_t> sizes;
  for (uint32_t i = 0; i < kDocuments; ++i) sizes.push_back(Between(rng, 1000, 6000));
  double at = 0;
  for (uint32_t request = 0; request < 600; ++request) {
    const double rank = std::pow(kDocuments, rng.Uniform()) - 1;  // as 1 / rank
    const uint32_t document = (static_cast<uint32_t>(rank) + request / 150 * 4) % kDocuments;
    trace.turns.push_back({.at_s = at,
                           .conversation = request,
                           .prefix = 1 + document,
                           .prefix_tokens = sizes[document],
                           .input_tokens = Between(rng, 20, 100),
                           .output_tokens = Between(rng, 20, 60)});
    at += LogBetween(rng, 1, 8);
  }
  return trace;
}

}  // namespace cairn
