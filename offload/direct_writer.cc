#include "offload/direct_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cairn {
namespace {

int OpenDirect(const std::string& path) {
  constexpr int kFlags = O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC;
  const int fd = open(path.c_str(), kFlags | O_DIRECT, 0644);
  return fd < 0 && errno == EINVAL ? open(path.c_str(), kFlags, 0644) : fd;
}

}  // namespace

DirectWriter::DirectWriter(const std::string& path) : fd_(OpenDirect(path)) {
  if (fd_ < 0) {
    error_ = errno;
    return;
  }
  for (Buffer* buffer : {&filling_, &leaving_}) {
    buffer->bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kSectorBytes, kBufferBytes)));
    CHECK(buffer->bytes != nullptr);
  }
  disk_ = std::thread([this] { WriteUntilClosed(); });
}

DirectWriter::~DirectWriter() {
  if (fd_ < 0) return;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  disk_.join();
  close(fd_);
}

int DirectWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (const int failed = error(); failed != 0) return failed;
    const size_t part = std::min(bytes.size(), kBufferBytes - filling_.size);
    std::memcpy(filling_.bytes.get() + filling_.size, bytes.data(), part);
    filling_.size += part;
    size_ += part;
    bytes = bytes.subspan(part);
    if (filling_.size == kBufferBytes) HandOver();
  }
  return 0;
}

int DirectWriter::Sync() {
  if (error() == 0) {
    const size_t padded = (filling_.size + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
    std::memset(filling_.bytes.get() + filling_.size, 0, padded - filling_.size);
    filling_.size = padded;
    if (padded > 0) HandOver();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return leaving_.size == 0 || error_ != 0; });
  if (error_ == 0 && (ftruncate(fd_, static_cast<off_t>(size_)) != 0 || fdatasync(fd_) != 0)) {
    error_ = errno;
  }
  return error_;
}

int DirectWriter::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

// Waits until the other buffer has left.
void DirectWriter::HandOver() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return leaving_.size == 0 || error_ != 0; });
    if (error_ != 0) return;
    std::swap(filling_, leaving_);
  }
  changed_.notify_all();
}

void DirectWriter::WriteUntilClosed() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || (leaving_.size > 0 && error_ == 0); });
    if (closed_) return;  // what was not synced is not wanted
    lock.unlock();
    const int failed = WriteOut(leaving_.bytes.get(), leaving_.size);
    lock.lock();
    leaving_.size = 0;
    if (error_ == 0) error_ = failed;
    changed_.notify_all();
  }
}

int DirectWriter::WriteOut(const std::byte* bytes, size_t size) {
  while (size > 0) {
    const ssize_t count = pwrite(fd_, bytes, size, static_cast<off_t>(written_size_));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : EIO;
    bytes += count;
    size -= static_cast<size_t>(count);
    written_size_ += static_cast<uint64_t>(count);
  }
  return 0;
}

bool HasDirectIo(const std::string& folder) {
  const std::string path = folder + "/direct-io";
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_DIRECT, 0644);
  if (fd < 0) return errno != EINVAL;
  close(fd);
  unlink(path.c_str());
  return true;
}

}  // namespace cairn
