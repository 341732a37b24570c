// Cuts work that becomes ready bit by bit into passes, so that all of it is done as early as can
// be: a pass may begin with what is there, or wait for more that it then does along.
//
// Dynamic programming over where passes end: the first n pieces are done at best when, of all
// beginnings m < n, a pass over the pieces behind m ends first; it begins when the first m are done
// and its last piece is ready. Work is linear in the pieces times those that fit into a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/pass_costs.h"

namespace cairn {

class EarlyPasses {
 public:
  // A pass has at most `tokens_max` tokens, or one piece of more.
  EarlyPasses(const PassCosts& costs, uint32_t tokens_max)
      : costs_(costs), tokens_max_(tokens_max) {}

  // Comes before all else: no pieces, and no pass begins before `begin_s`.
  void Clear(double begin_s);
  // The next piece, of `tokens` > 0; `ready_s` is not before that of the piece before.
  void Add(uint32_t tokens, double position_sum, double ready_s);

  size_t count() const { return states_.size() - 1; }
  // When the last pass is over.
  double end_s() const { return states_.back().end_s; }
  // Pieces of the first pass; 0 if there is none.
  size_t FirstPassCount() const;

 private:
  // After some beginning of the pieces.
  struct State {
    uint64_t tokens = 0;
    double position_sum = 0;
    double end_s = 0;
    size_t pass_begin = 0;  // pieces before the last pass
  };

  const PassCosts& costs_;
  const uint32_t tokens_max_;
  std::vector<State> states_;  // by how many pieces; empty until Clear
};

}  // namespace cairn
