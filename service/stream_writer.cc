#include "service/stream_writer.h"

#include <utility>

namespace cairn {

StreamWriter::StreamWriter(std::chrono::milliseconds interval)
    : interval_(interval), thread_([this] { Run(); }) {}

StreamWriter::~StreamWriter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StreamWriter::Post(std::shared_ptr<WritableStream> stream, bool urgent) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    wake = posted_.empty() || (urgent && !urgent_);
    posted_.push_back(std::move(stream));
    urgent_ |= urgent;
  }
  if (wake) changed_.notify_one();
}

void StreamWriter::Hurry() {
  {
    std::lock_guard lock(mutex_);
    urgent_ = true;
  }
  changed_.notify_one();
}

void StreamWriter::Run() {
  std::vector<std::shared_ptr<WritableStream>> batch;
  auto next_write = std::chrono::steady_clock::now();
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !posted_.empty() || stopping_; });
      if (posted_.empty()) return;
      changed_.wait_until(lock, next_write, [&] { return urgent_ || stopping_; });
      batch.swap(posted_);
      urgent_ = false;
    }
    for (const std::shared_ptr<WritableStream>& stream : batch) stream->Write();
    batch.clear();
    next_write = std::chrono::steady_clock::now() + interval_;
  }
}

}  // namespace cairn
