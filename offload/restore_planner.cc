#include "offload/restore_planner.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "offload/restore_planning.h"

namespace cairn {
namespace {

constexpr size_t kReorderedMax = 8;  // restores, of which neighbours are exchanged

// Several restores in turn, each planned with the backlog that those before it leave.
class RestoreQueue {
 public:
  RestoreQueue(std::span<const RestoreProblem> problems, RestorePolicy policy)
      : problems_(problems), policy_(policy), layouts_(problems.size()) {
    for (uint32_t i = 0; i < problems.size(); ++i) {
      layouts_[i].Build(problems[i].blocks, static_cast<uint32_t>(problems[i].channels.size()));
      Place alone{.problem = i};
      Choose(alone);
      alone_s_.push_back(alone.choice.seconds);
    }
  }

  std::vector<QueuedRestore> Plan() const {
    std::vector<Place> places(problems_.size());
    for (uint32_t i = 0; i < places.size(); ++i) places[i].problem = i;
    std::ranges::stable_sort(places, {}, [&](const Place& place) {
      return alone_s_[place.problem] / problems_[place.problem].weight;
    });
    double sum_s = PlanFrom(0, places, std::numeric_limits<double>::infinity());
    // One that is short by itself may hold up a channel that the next one hardly needs.
    for (size_t i = 0; i + 1 < places.size() && places.size() <= kReorderedMax; ++i) {
      std::vector<Place> other = places;
      std::swap(other[i].problem, other[i + 1].problem);
      const double other_sum_s = PlanFrom(i, other, sum_s);
      if (other_sum_s >= sum_s) continue;
      places = std::move(other);
      sum_s = other_sum_s;
    }
    std::vector<QueuedRestore> queue(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      queue[i].problem = places[i].problem;
      WithBacklog(places[i], [&](const RestorePlanning& planning) {
        planning.Write(places[i].choice, queue[i].plan);
      });
    }
    return queue;
  }

 private:
  struct Place {
    uint32_t problem = 0;
    RestorePlanning::Use before;  // of all that come earlier
    RestorePlanning::Choice choice;
    RestorePlanning::Use use;
  };

  // The planning of the place's problem, which finds so much ordered before it.
  template <class Visit>
  void WithBacklog(const Place& place, const Visit& visit) const {
    RestoreProblem problem = problems_[place.problem];
    std::array<RestoreChannel, kRestoreChannelsMax> channels;
    std::ranges::copy(problem.channels, channels.begin());
    problem.channels = std::span(channels).first(problem.channels.size());
    for (uint32_t c = 0; c < problem.channels.size(); ++c) {
      channels[c].backlog_s += place.before.channel_s[c];
    }
    problem.compute_backlog_s += place.before.compute_s;
    visit(RestorePlanning(problem, layouts_[place.problem]));
  }

  void Choose(Place& place) const {
    WithBacklog(place, [&](const RestorePlanning& planning) {
      place.choice = planning.Choose(policy_);
      place.use = planning.UseOf(place.choice);
    });
  }

  // Plans the places from `first` on; those before it stay. The sum of the weighted times; or, as
  // soon as it is known to be no less than `limit_s`, something that is not less either.
  double PlanFrom(size_t first, std::vector<Place>& places, double limit_s) const {
    double sum_s = 0;  // those that are not planned yet take as long as alone, at least
    for (size_t i = 0; i < places.size(); ++i) {
      const uint32_t problem = places[i].problem;
      sum_s +=
          problems_[problem].weight * (i < first ? places[i].choice.seconds : alone_s_[problem]);
    }
    for (size_t i = first; i < places.size() && sum_s < limit_s; ++i) {
      Place& place = places[i];
      if (i > 0) place.before = places[i - 1].before + places[i - 1].use;
      Choose(place);
      sum_s += problems_[place.problem].weight * (place.choice.seconds - alone_s_[place.problem]);
    }
    return sum_s;
  }

  const std::span<const RestoreProblem> problems_;
  const RestorePolicy policy_;
  std::vector<RestoreLayout> layouts_;
  std::vector<double> alone_s_;  // of each problem, if it had no company
};

}  // namespace

void PlanRestore(const RestoreProblem& problem, RestorePolicy policy, RestoreScratch& scratch,
                 RestorePlan& plan) {
  scratch.layout.Build(problem.blocks, static_cast<uint32_t>(problem.channels.size()));
  const RestorePlanning planning(problem, scratch.layout);
  planning.Write(planning.Choose(policy), plan);
}

RestorePlan PlanRestore(const RestoreProblem& problem, RestorePolicy policy) {
  RestoreScratch scratch;
  RestorePlan plan;
  PlanRestore(problem, policy, scratch, plan);
  return plan;
}

std::vector<QueuedRestore> PlanRestores(std::span<const RestoreProblem> problems,
                                        RestorePolicy policy) {
  if (problems.empty()) return {};
  return RestoreQueue(problems, policy).Plan();
}

}  // namespace cairn
