// What Ctrl-C does. It ends the program with exit code 130, except while an Interruptible lives:
// then it calls that one's action, on a thread of its own.
#pragma once

#include <functional>

namespace cairn {

// Called first in main, before any thread is started: Ctrl-C then reaches the thread that waits for
// it, and no other.
void StartWaitingForInterrupts();

class [[nodiscard]] Interruptible {
 public:
  explicit Interruptible(std::function<void()> action);
  ~Interruptible();  // puts back what was there before
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  std::function<void()> previous_;
};

}  // namespace cairn
