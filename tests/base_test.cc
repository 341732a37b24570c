// The vocabulary that everything else relies on.
#include <gtest/gtest.h>

#include <thread>
#include <type_traits>

#include "base/bounded_queue.h"
#include "base/digest.h"
#include "base/ids.h"
#include "base/rng.h"
#include "base/status.h"

namespace cairn {
namespace {

static_assert(!std::is_convertible_v<BlockId, SlotId>);
static_assert(!std::is_convertible_v<int, BlockId>);

TEST(Ids, DefaultIsNone) {
  EXPECT_FALSE(BlockId().valid());
  EXPECT_TRUE(BlockId(0).valid());
  EXPECT_FALSE(SequenceId().valid());
}

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidField("value", "must be even, is " + std::to_string(value));
  return value / 2;
}
Result<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Status, TravelsThroughMacros) {
  EXPECT_EQ(*Quarter(8), 2);
  const Result<int> refused = Quarter(6);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status().field(), "value");
  EXPECT_EQ(refused.status().ToString(), "INVALID_ARGUMENT: value: must be even, is 3");
}

TEST(Digest, StreamEqualsWhole) {
  DigestStream stream;
  stream.Add("abc");
  stream.Add("");
  stream.Add("defghij");
  EXPECT_EQ(stream.Finish(), DigestOf("abcdefghij"));
  EXPECT_NE(DigestOf("a"), DigestOf("b"));
  EXPECT_EQ(DigestOf("").ToHex().size(), 32u);
}

TEST(Rng, CounterIsAPureFunction) {
  EXPECT_EQ(CounterBits(1, 2, 3), CounterBits(1, 2, 3));
  EXPECT_NE(CounterBits(1, 2, 3), CounterBits(1, 3, 2));
  double sum = 0;
  for (uint64_t i = 0; i < 100000; ++i) sum += CounterUniform(7, i, 0);
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(BoundedQueue, RefusesWhenFullAndWakes) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_FALSE(queue.Push(3));
  EXPECT_EQ(queue.Drain(std::chrono::seconds(0)), (std::vector<int>{1, 2}));
  std::thread waker([&] { queue.Wake(); });
  EXPECT_TRUE(queue.Drain(std::chrono::seconds(60)).empty());
  waker.join();
  queue.Close();
  EXPECT_FALSE(queue.Push(4));
}

}  // namespace
}  // namespace cairn
