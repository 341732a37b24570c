// When the writer comes by: at once or together. The interval is an hour, so that nothing comes by
// chance.
#include "service/stream_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <semaphore>

namespace cairn {
namespace {

class CountedStream final : public WritableStream {
 public:
  explicit CountedStream(std::counting_semaphore<>& written) : written_(written) {}
  void Write() override {
    ++count_;
    written_.release();
  }
  int count() const { return count_; }

 private:
  std::counting_semaphore<>& written_;
  std::atomic<int> count_ = 0;
};

class StreamWriterTest : public testing::Test {
 protected:
  std::counting_semaphore<> written_{0};
  std::shared_ptr<CountedStream> one_ = std::make_shared<CountedStream>(written_);
  std::shared_ptr<CountedStream> other_ = std::make_shared<CountedStream>(written_);
};

TEST_F(StreamWriterTest, WhatIsUrgentGoesAtOnceAndTakesAlongWhatWaits) {
  StreamWriter writer(std::chrono::hours(1));
  writer.Post(one_, false);  // the first of all has no write before it to wait for
  written_.acquire();
  writer.Post(one_, false);
  EXPECT_EQ(one_->count(), 1);
  writer.Post(other_, true);
  written_.acquire();
  written_.acquire();
  EXPECT_EQ(one_->count(), 2);
  EXPECT_EQ(other_->count(), 1);
}

TEST_F(StreamWriterTest, HurryMakesUrgentWhatWaits) {
  StreamWriter writer(std::chrono::hours(1));
  writer.Post(one_, false);
  written_.acquire();
  writer.Post(one_, false);
  writer.Hurry();
  written_.acquire();
  EXPECT_EQ(one_->count(), 2);
}

TEST_F(StreamWriterTest, WithoutAnIntervalNothingWaits) {
  StreamWriter writer(std::chrono::milliseconds(0));
  for (int i = 0; i < 100; ++i) {
    writer.Post(one_, false);
    written_.acquire();
  }
  EXPECT_EQ(one_->count(), 100);
}

TEST_F(StreamWriterTest, TheEndWritesWhatWaits) {
  {
    StreamWriter writer(std::chrono::hours(1));
    writer.Post(one_, false);
    written_.acquire();
    writer.Post(one_, false);
    writer.Post(other_, false);
  }
  EXPECT_EQ(one_->count(), 2);
  EXPECT_EQ(other_->count(), 1);
}

}  // namespace
}  // namespace cairn
