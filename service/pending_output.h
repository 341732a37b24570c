// What a stream has to say and could not write yet: updates that come while a message is under way
// are merged, so a slow connection costs larger messages, not more of them.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/api.h"

namespace cairn {

class PendingOutput {
 public:
  // Full once more than `tokens_max` tokens wait.
  explicit PendingOutput(size_t tokens_max) : tokens_max_(tokens_max) {}

  // Takes `update`, which continues where the last one ended.
  void Add(StreamUpdate update);
  bool full() const { return merged_.token_ids.size() > tokens_max_; }
  bool empty() const { return merged_.token_ids.empty() && merged_.text.empty(); }

  // All of it as one update; at the next token's position when there is nothing.
  StreamUpdate Take();

 private:
  const size_t tokens_max_;
  StreamUpdate merged_;  // its position is right even when it is empty
};

}  // namespace cairn
