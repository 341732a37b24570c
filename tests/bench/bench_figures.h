// What benches share: how device time is taken, and how a figure is printed.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"

namespace cairn {

// Ends the program, with what went wrong.
void Require(const Status& status);
template <class T>
T Require(Result<T> result) {
  Require(result.status());
  return *std::move(result);
}

// What was measured, beside the least (or most) that it should be. One line of JSON each.
struct Figure {
  std::string name;
  double value = 0;
  const char* unit = "";
  double ratio = 0;     // of the value to what it is held against; 0: to nothing
  const char* of = "";  // what that is
  double at_least = 0;  // of the ratio; 0: there is no bar
  double at_most = 0;   // of the value; likewise
};
void Print(const Figure& figure);

// How long each point is measured.
struct Effort {
  int rounds = 5;
  double round_s = 0.02;
  int calls_max = 1000;  // of a round
};
// The least there is, to see that everything runs.
inline constexpr Effort kOneCall = {.rounds = 1, .round_s = 0, .calls_max = 1};

// Device seconds of one call of `work`, which puts work on `stream`: the median of the rounds, of
// calls one behind the other.
template <class Work>
double DeviceSeconds(Stream& stream, const Effort& effort, Work&& work);

// ---- implementation

double Median(std::vector<double> values);
// Between two events of one stream; waits for the second.
double SecondsBetween(const EventRef& begin, const EventRef& end);

template <class Work>
double DeviceSeconds(Stream& stream, const Effort& effort, Work&& work) {
  const auto measure = [&](int calls) {
    const EventRef begin = stream.Record();
    for (int i = 0; i < calls; ++i) work();
    const double seconds = SecondsBetween(begin, stream.Record()) / calls;
    Require(stream.Synchronize());
    return seconds;
  };
  measure(1);  // memory is taken, kernels are loaded
  const double once = measure(1);
  int calls = effort.calls_max;
  if (once * calls > effort.round_s) calls = static_cast<int>(effort.round_s / once) + 1;
  std::vector<double> rounds;
  rounds.reserve(static_cast<size_t>(effort.rounds));
  for (int round = 0; round < effort.rounds; ++round) rounds.push_back(measure(calls));
  return Median(std::move(rounds));
}

}  // namespace cairn
