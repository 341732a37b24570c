// The thread that writes streams. The engine hands over whatever has something to write and goes on
// with its next step; serialising and the calls into the network happen here meanwhile.
//
// A message a token would cost a small machine a tenth of its speed: system calls and threads that
// wake up in the client and in the server. So what can wait is written together, once in an
// interval that nobody sees; what is urgent (the first tokens of a stream, its end, a full buffer)
// goes at once, and takes along whatever waits.
//
// Threads: Post from any. Writes run one after the other, in the order of their posts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cairn {

class WritableStream {
 public:
  virtual ~WritableStream() = default;
  virtual void Write() = 0;
};

class StreamWriter {
 public:
  // `interval` 0: everything is urgent.
  explicit StreamWriter(std::chrono::milliseconds interval);
  ~StreamWriter();  // writes what was posted; nothing is posted any more
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // Calls stream->Write(), at the latest when the interval since the writes before is over.
  void Post(std::shared_ptr<WritableStream> stream, bool urgent);
  // What was posted has become urgent.
  void Hurry();

 private:
  void Run();

  const std::chrono::milliseconds interval_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<std::shared_ptr<WritableStream>> posted_;
  bool urgent_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cairn
