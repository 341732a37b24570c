// The client's end of a simulated stream: takes tokens into a buffer of bounded size and reads them
// out of it at its own pace, or never.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/api.h"

namespace cairn {

class SimulatedReader : public TokenSink {
 public:
  // `capacity` tokens make it full; it reads one every `ticks_per_token` calls of Read, 0: never.
  SimulatedReader(size_t capacity, uint32_t ticks_per_token)
      : capacity_(capacity), ticks_per_token_(ticks_per_token) {}

  bool OnTokens(StreamUpdate update) override {
    EXPECT_FALSE(end) << "an update after the end";
    if (tokens.empty()) first_position = update.position;
    EXPECT_EQ(update.position, *first_position + static_cast<int64_t>(tokens.size()));
    if (full_) ++updates_while_full;
    tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
    unread_count_ += update.token_ids.size();
    if (!full_ && unread_count_ >= capacity_) {
      full_ = true;
      ++pauses;
    }
    return !full_;
  }
  void OnEnd(StreamEnd stream_end) override {
    EXPECT_FALSE(end) << "a second end";
    end = std::move(stream_end);
  }

  // A tick has passed. True when the buffer was full and is empty now: the stream may go on.
  bool Read() {
    if (ticks_per_token_ == 0 || ++ticks_ % ticks_per_token_ != 0) return false;
    if (unread_count_ > 0) --unread_count_;
    return unread_count_ == 0 && std::exchange(full_, false);
  }
  bool is_full() const { return full_; }
  bool is_dead() const { return ticks_per_token_ == 0; }

  // The tokens since the last call.
  std::vector<uint32_t> TakeNews() {
    std::vector<uint32_t> news(tokens.begin() + static_cast<long>(taken_), tokens.end());
    taken_ = tokens.size();
    return news;
  }

  std::optional<int64_t> first_position;
  std::vector<uint32_t> tokens;
  std::optional<StreamEnd> end;
  int updates_while_full = 0;
  int64_t pauses = 0;  // times that it was full

 private:
  const size_t capacity_;
  const uint32_t ticks_per_token_;
  uint64_t ticks_ = 0;
  size_t unread_count_ = 0;
  size_t taken_ = 0;
  bool full_ = false;
};

}  // namespace cairn
