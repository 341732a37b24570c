#include "service/ctl/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <mutex>
#include <thread>
#include <utility>

namespace cairn {
namespace {

// A signal has no receiver but the process, so this is the one global state of the program.
std::mutex action_mutex;
std::function<void()> action;

void WaitForInterrupts(sigset_t signals) {
  while (true) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    const std::lock_guard lock(action_mutex);
    if (!action) _exit(130);
    action();
  }
}

}  // namespace

void StartWaitingForInterrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(WaitForInterrupts, signals).detach();
}

Interruptible::Interruptible(std::function<void()> new_action) {
  const std::lock_guard lock(action_mutex);
  previous_ = std::exchange(action, std::move(new_action));
}

Interruptible::~Interruptible() {
  const std::lock_guard lock(action_mutex);
  action = std::move(previous_);
}

}  // namespace cairn
