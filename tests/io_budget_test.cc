#include "offload/io_budget.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(IoBudget, BytesPerSecondAreAnUpperBound) {
  IoBudget budget(1'000'000);
  const auto start = steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    budget.WaitToRead(10'000);
    budget.WaitToWrite(10'000);
  }
  // The last one goes when the nine before it are paid for.
  EXPECT_GE(steady_clock::now() - start, milliseconds(90));
}

TEST(IoBudget, WritesLetOrderedReadsGoFirst) {
  IoBudget budget(0);
  budget.ReadOrdered();
  const auto start = steady_clock::now();
  budget.WaitToWrite(1);
  EXPECT_GE(steady_clock::now() - start, IoBudget::kWritePatience);  // but not for ever
  budget.WaitToRead(1);
  budget.ReadEnded();
}

TEST(IoBudget, AReadThatEndsLetsTheWriteGo) {
  IoBudget budget(0);
  for (int i = 0; i < 100; ++i) {
    budget.ReadOrdered();
    auto write = std::async(std::launch::async, [&] { budget.WaitToWrite(1); });
    budget.ReadEnded();
    write.get();
  }
}

TEST(IoBudget, WhatIsGivenBackDelaysNobody) {
  IoBudget budget(1);
  budget.WaitToRead(1 << 30);  // the next one would wait for 34 years
  auto read = std::async(std::launch::async, [&] { budget.WaitToRead(1); });
  budget.GiveBack(1 << 30);
  read.get();
}

TEST(IoBudget, NobodyWaitsAfterStop) {
  IoBudget budget(1);
  budget.WaitToRead(1 << 30);  // the next one would wait for 34 years
  auto read = std::async(std::launch::async, [&] { budget.WaitToRead(1); });
  auto write = std::async(std::launch::async, [&] { budget.WaitToWrite(1); });
  budget.Stop();
  read.get();
  write.get();
}

}  // namespace
}  // namespace cairn
