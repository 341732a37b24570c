// Every bound of the engine's configuration.
#include "engine/engine_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace cairn {
namespace {

EngineConfig Valid() {
  EngineConfig config;
  config.context_length = 8192;
  return config;
}

TEST(EngineConfig, DefaultsNeedOnlyTheContextOfTheModel) {
  EXPECT_TRUE(Valid().Validate().ok());
  EXPECT_EQ(EngineConfig().Validate().message(), "context_length: must be in 1..2147483647, is 0");
}

TEST(EngineConfig, RefusesWhatIsOutOfBounds) {
  const std::vector<std::pair<std::function<void(EngineConfig&)>, std::string>> cases = {
      {[](auto& c) { c.context_length = 1u << 31; },
       "context_length: must be in 1..2147483647, is 2147483648"},
      {[](auto& c) { c.concurrent_max = 0; }, "concurrent_max: must be in 1..1024, is 0"},
      {[](auto& c) { c.concurrent_max = 1025; }, "concurrent_max: must be in 1..1024, is 1025"},
      {[](auto& c) { c.prefill_chunk = 15; }, "prefill_chunk: must be in 16..8192, is 15"},
      {[](auto& c) { c.prefill_chunk = 8193; }, "prefill_chunk: must be in 16..8192, is 8193"},
      {[](auto& c) { c.restore_share = 0; }, "restore_share: must be in 1..95, is 0"},
      {[](auto& c) { c.restore_share = 96; }, "restore_share: must be in 1..95, is 96"},
      {[](auto& c) { c.waiting_max = 0; }, "waiting_max: must be in 1..1000000, is 0"},
      {[](auto& c) { c.command_queue_max = 0; }, "command_queue_max: must be in 1..1000000, is 0"},
      {[](auto& c) { c.session_count_max = 0; }, "session_count_max: must be in 1..10000000, is 0"},
      {[](auto& c) { c.session_tokens_max = 0; },
       "session_tokens_max: must be in 1..1099511627776, is 0"},
      {[](auto& c) { c.max_tokens_default = 0; },
       "max_tokens_default: must be in 1..2147483647, is 0"},
      {[](auto& c) { c.paused_max = std::chrono::milliseconds(0); },
       "paused_max: must be in 1..3600000 ms, is 0 ms"},
      {[](auto& c) { c.watchdog_max = std::chrono::hours(2); },
       "watchdog_max: must be in 1..3600000 ms, is 7200000 ms"},
      {[](auto& c) { c.watchdog_max = c.paused_max; },
       "watchdog_max: must be more than paused_max, which is 10000 ms, is 10000 ms"},
  };
  for (const auto& [break_it, message] : cases) {
    EngineConfig config = Valid();
    break_it(config);
    EXPECT_EQ(config.Validate().message(), message);
    EXPECT_EQ(config.Validate().code(), Code::kInvalidArgument);
    EXPECT_EQ(config.Validate().field(), message.substr(0, message.find(':')));
  }
}

}  // namespace
}  // namespace cairn
