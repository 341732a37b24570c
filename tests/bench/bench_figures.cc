#include "tests/bench/bench_figures.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace cairn {

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

void Print(const Figure& figure) {
  nlohmann::json line = {{"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
  if (figure.ratio != 0) {
    line["ratio"] = figure.ratio;
    line["of"] = figure.of;
  }
  if (figure.at_least != 0) line["at_least"] = figure.at_least;
  if (figure.at_most != 0) line["at_most"] = figure.at_most;
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double SecondsBetween(const EventRef& begin, const EventRef& end) {
  Require(end->Wait());
  const double seconds = end->SecondsSince(*begin);
  return std::max(seconds, 1e-9);  // events may have no times, where nothing is measured in earnest
}

}  // namespace cairn
