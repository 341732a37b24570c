#include "engine/output_assembler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {

OutputAssembler::StopMatcher::StopMatcher(std::string stop)
    : stop_(std::move(stop)), fallback_(stop_.size() + 1, 0) {
  CHECK(!stop_.empty() && stop_.size() <= UINT16_MAX);
  for (size_t n = 1; n < stop_.size(); ++n) {
    size_t length = fallback_[n];
    while (length > 0 && stop_[length] != stop_[n]) length = fallback_[length];
    fallback_[n + 1] = static_cast<uint16_t>(stop_[length] == stop_[n] ? length + 1 : 0);
  }
}

bool OutputAssembler::StopMatcher::Push(char byte) {
  while (matched_ > 0 && stop_[matched_] != byte) matched_ = fallback_[matched_];
  if (stop_[matched_] == byte) ++matched_;
  return matched_ == stop_.size();
}

OutputAssembler::OutputAssembler(const Tokenizer& tokenizer, std::vector<std::string> stop)
    : tokenizer_(tokenizer), detokenizer_(tokenizer) {
  matchers_.reserve(stop.size());
  for (std::string& text : stop) matchers_.emplace_back(std::move(text));
}

void OutputAssembler::Prime(std::span<const uint32_t> previous) {
  CHECK(pushed_bytes_ == 0 && held_.empty());
  detokenizer_.Prime(previous);
}

Released OutputAssembler::Push(uint32_t id, std::optional<TokenLogprob> logprob) {
  CHECK(!finished_);
  const std::string_view bytes = tokenizer_.TokenBytes(id);
  const std::optional<Match> match = MatchStops(bytes);
  pushed_bytes_ += bytes.size();
  held_.push_back({id, pushed_bytes_, std::move(logprob)});
  Released released;
  if (!match) {
    size_t matched = 0;
    for (const StopMatcher& matcher : matchers_) matched = std::max(matched, matcher.matched());
    ReleaseUntil(pushed_bytes_ - matched, released);
    return released;
  }
  finished_ = true;
  ReleaseUntil(match->start, released);
  // What is left begins with the token that reaches over the start of the match.
  const std::string_view straddling = tokenizer_.TokenBytes(held_.front().id);
  released.text += detokenizer_.PushBytes(straddling.substr(0, match->start - released_bytes_));
  released.text += detokenizer_.Flush();
  released.stop_string = *match->stop;
  held_.clear();
  return released;
}

Released OutputAssembler::Finish() {
  CHECK(!finished_);
  finished_ = true;
  Released released;
  ReleaseUntil(pushed_bytes_, released);
  released.text += detokenizer_.Flush();
  return released;
}

std::optional<OutputAssembler::Match> OutputAssembler::MatchStops(std::string_view bytes) {
  std::optional<Match> best;
  for (StopMatcher& matcher : matchers_) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (!matcher.Push(bytes[i])) continue;
      const uint64_t start = pushed_bytes_ + i + 1 - matcher.stop().size();
      if (!best || start < best->start) best = Match{start, &matcher.stop()};
      break;
    }
  }
  return best;
}

void OutputAssembler::ReleaseUntil(uint64_t limit, Released& released) {
  while (!held_.empty() && held_.front().end <= limit) {
    HeldToken& token = held_.front();
    released.token_ids.push_back(token.id);
    released.text += detokenizer_.Push(token.id);
    if (token.logprob) released.logprobs.push_back(std::move(*token.logprob));
    released_bytes_ = token.end;
    held_.pop_front();
  }
}

}  // namespace cairn
