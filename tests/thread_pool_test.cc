#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace cairn {
namespace {

class ThreadPoolTest : public testing::TestWithParam<uint32_t> {};

TEST_P(ThreadPoolTest, RunCallsEveryThreadOnceAndPublishesWhatItWrote) {
  ThreadPool pool(GetParam());
  std::vector<uint32_t> calls(pool.thread_count(), 0);  // plain memory: TSan sees a missing edge
  for (uint32_t round = 1; round <= 500; ++round) {
    pool.Run([&](uint32_t thread) { ++calls[thread]; });
    for (uint32_t count : calls) ASSERT_EQ(count, round);
  }
}

TEST_P(ThreadPoolTest, ForEachVisitsEveryIndexOnce) {
  ThreadPool pool(GetParam());
  for (size_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> visits(count, 0);
    pool.ForEach(count, [&](size_t index) { ++visits[index]; });
    EXPECT_EQ(visits, std::vector<int>(count, 1));
  }
}

TEST_P(ThreadPoolTest, ForRangesCutsIntoContiguousPartsOfAtLeastTheMinimum) {
  ThreadPool pool(GetParam());
  for (size_t count : {0, 1, 5, 16, 17, 1000}) {
    for (size_t part_min : {1, 8, 2000}) {
      std::vector<int> visits(count, 0);
      std::atomic<uint32_t> parts{0};
      std::atomic<bool> short_part{false};
      pool.ForRanges(count, part_min, [&](size_t begin, size_t end) {
        ++parts;
        if (end - begin < std::min(part_min, count)) short_part = true;
        for (size_t i = begin; i < end; ++i) ++visits[i];
      });
      EXPECT_EQ(visits, std::vector<int>(count, 1));
      EXPECT_LE(parts.load(), pool.thread_count());
      EXPECT_FALSE(short_part.load());
    }
  }
}

TEST_P(ThreadPoolTest, WakesWorkersThatHaveGoneToSleep) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::vector<size_t> squares(100, 0);
    pool.ForEach(squares.size(), [&](size_t i) { squares[i] = i * i; });
    EXPECT_EQ(std::accumulate(squares.begin(), squares.end(), size_t{0}), 328350u);
  }
}

TEST_P(ThreadPoolTest, CallerSleepsUntilASlowWorkerIsDone) {
  ThreadPool pool(GetParam());
  std::vector<int> done(pool.thread_count(), 0);
  pool.Run([&](uint32_t thread) {
    if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    done[thread] = 1;
  });
  EXPECT_EQ(done, std::vector<int>(pool.thread_count(), 1));
}

// 7 and 32 threads are more than most test machines have cores.
INSTANTIATE_TEST_SUITE_P(ThreadCounts, ThreadPoolTest, testing::Values(1, 2, 3, 7, 32));

TEST(ThreadPoolDeathTest, RefusesCountsOutsideItsBound) {
  EXPECT_DEATH(ThreadPool(0), "CHECK failed");
  EXPECT_DEATH(ThreadPool(kThreadCountMax + 1), "CHECK failed");
}

}  // namespace
}  // namespace cairn
