#include "offload/copy_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn {

CopyRef CopyQueue::Add(Way way, std::byte* to, const std::byte* from, size_t size_bytes,
                       const EventRef& after) {
  if (!has_waiting()) due_ = std::max(due_, clock_.Now());
  auto copy = std::make_shared<QueuedCopy>();
  copy->to_ = to;
  copy->from_ = from;
  copy->size_bytes_ = size_bytes;
  copy->after_ = after;
  copy->ordered_ = clock_.Now();
  (way == Way::kToDevice ? to_device_ : to_host_).push_back(copy);
  Advance();
  return copy;
}

void CopyQueue::Advance() {
  const Clock::Monotonic now = clock_.Now();
  while (has_waiting() && now >= due_) {
    const bool is_impatient = !to_host_.empty() && now - to_host_.front()->ordered_ >= kPatience;
    std::deque<CopyRef>& next = to_device_.empty() || is_impatient ? to_host_ : to_device_;
    const CopyRef copy = std::move(next.front());
    next.pop_front();
    const std::chrono::duration<double> time(LimitedSeconds(copy->size_bytes_));
    due_ += std::chrono::duration_cast<Clock::Monotonic::duration>(time);
    Begin(*copy);
  }
}

void CopyQueue::Begin(QueuedCopy& copy) {
  stream_->Wait(copy.after_);
  copy.began_ = stream_->Record();
  stream_->Copy(copy.to_, copy.from_, copy.size_bytes_);
  copy.ended_ = stream_->Record();
  copy.begun_ = true;
  ++begun_count_;
}

bool CopyQueue::Cancel(const CopyRef& copy) {
  return std::erase(to_device_, copy) + std::erase(to_host_, copy) > 0;
}

double CopyQueue::LimitedSeconds(size_t size_bytes) const {
  if (bytes_per_second_ == 0) return 0;
  return static_cast<double>(size_bytes) / static_cast<double>(bytes_per_second_);
}

Status CopyQueue::CopyNow(std::byte* to, const std::byte* from, size_t size_bytes,
                          const EventRef& after) {
  stream_->Wait(after);
  stream_->Copy(to, from, size_bytes);
  return stream_->Synchronize();
}

}  // namespace cairn
