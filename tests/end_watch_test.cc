// A server that is to end does end, whatever holds it up; and is left alone while it gets on.
#include "service/end_watch.h"

#include <gtest/gtest.h>

#include <future>

namespace cairn {
namespace {

using std::chrono::milliseconds;

EndLimits Limits(milliseconds grace, milliseconds max) {
  return {
      .grace = grace, .patience = std::chrono::seconds(10), .max = max, .look = milliseconds(1)};
}

// What is said when it is given up; empty when it is not, within `time`.
std::string SaidWithin(milliseconds time, const EndLimits& limits, const DiskWait& wait,
                       bool sessions_are_written = false) {
  std::promise<std::string> said;
  std::future<std::string> what = said.get_future();
  EndWatch watch(
      limits, [wait] { return wait; }, [&](const std::string& why) { said.set_value(why); });
  if (sessions_are_written) watch.SessionsAreWritten();
  return what.wait_for(time) == std::future_status::ready ? what.get() : "";
}

constexpr milliseconds kLong{60'000};
constexpr milliseconds kShort{50};
constexpr DiskWait kSilent{.silence = std::chrono::seconds(12), .session_count = 3};
constexpr DiskWait kSlow{.silence = std::chrono::seconds(9), .session_count = 3};

TEST(EndWatch, GivesUpADiskThatDoesNotAnswerOnceTheStreamsHadTheirTime) {
  EXPECT_EQ(SaidWithin(kLong, Limits(milliseconds(5), kLong), kSilent),
            "the disk has not answered for 12 s; not written: changes of at least 3 sessions, "
            "which nobody was told of");
  EXPECT_EQ(SaidWithin(kShort, Limits(kLong, kLong), kSilent), "");
}

TEST(EndWatch, WaitsForADiskThatAnswers) {
  EXPECT_EQ(SaidWithin(kShort, Limits(milliseconds(0), kLong), kSlow), "");
  EXPECT_EQ(SaidWithin(kShort, Limits(milliseconds(0), kLong), kSilent, true), "");
}

TEST(EndWatch, GivesUpWhateverItIsInTheEnd) {
  EXPECT_EQ(SaidWithin(kLong, Limits(milliseconds(0), milliseconds(5)), kSlow),
            "the end takes longer than 0 s; not written: what nobody was told of sessions, and KV "
            "blocks that were on their way to the disk");
  EXPECT_EQ(SaidWithin(kLong, Limits(milliseconds(0), milliseconds(5)), kSilent, true),
            "the end takes longer than 0 s; not written: KV blocks that were on their way to the "
            "disk");
}

}  // namespace
}  // namespace cairn
