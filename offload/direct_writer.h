// A file that is written from its beginning to its end, past the page cache, while the next part is
// being made: one buffer fills, the other one is on its way to the disk. A caller that is faster
// than the disk waits for it, so no more than two buffers are ever ahead of it.
//
// Direct writes need whole sectors: the end of the file is padded, and cut off again, by Sync.
// Where the file system has no direct writes, it writes ordinary ones.
//
// Errors are numbers of errno, 0 for none; after the first one nothing is written any more.
// Threads: one at a time; it has one of its own for the disk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

namespace cairn {

class DirectWriter {
 public:
  explicit DirectWriter(const std::string& path);  // makes the file, or empties it
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  int Append(std::span<const std::byte> bytes);
  // Everything is on the disk; the last call before the end.
  int Sync();

  int error() const;  // the first one
  uint64_t size() const { return size_; }

 private:
  static constexpr size_t kSectorBytes = 4096;
  static constexpr size_t kBufferBytes = size_t{1} << 20;
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  struct Buffer {
    std::unique_ptr<std::byte, Free> bytes;
    size_t size = 0;
  };

  void HandOver();
  void WriteUntilClosed();
  int WriteOut(const std::byte* bytes, size_t size);

  int fd_ = -1;
  Buffer filling_;
  uint64_t size_ = 0;
  uint64_t written_size_ = 0;  // of the disk's thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Buffer leaving_;  // on its way when its size is not 0
  int error_ = 0;
  bool closed_ = false;
  std::thread disk_;
};

// Whether files in the folder can be read and written past the page cache.
bool HasDirectIo(const std::string& folder);

}  // namespace cairn
