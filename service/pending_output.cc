#include "service/pending_output.h"

#include <iterator>
#include <utility>

namespace cairn {
namespace {

template <class T>
void MoveToEnd(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void PendingOutput::Add(StreamUpdate update) {
  if (empty()) {
    merged_ = std::move(update);
    return;
  }
  MoveToEnd(merged_.token_ids, update.token_ids);
  MoveToEnd(merged_.logprobs, update.logprobs);
  merged_.text += update.text;
}

StreamUpdate PendingOutput::Take() {
  StreamUpdate update = std::exchange(merged_, {});
  merged_.position = update.position + static_cast<int64_t>(update.token_ids.size());
  return update;
}

}  // namespace cairn
