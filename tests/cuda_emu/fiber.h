// A stack on which code runs until it switches to another one, on the same OS thread. Made of
// Boost.Context's two primitives, because a switch goes straight from fiber to fiber here and costs
// some 30 ns, where ucontext takes two system calls.
//
// Under ASan the switch tells which stack is in use. Under TSan each run of a fiber is a thread of
// its own (`tsan_thread`), and switching orders nothing: only barriers do, so races show.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>

namespace cairn::cuemu {

class Fiber {
 public:
  Fiber();                         // the stack that the calling OS thread runs on
  explicit Fiber(void (*body)());  // one of its own; body never returns
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Drops what was on the stack, without unwinding it; body begins anew at the next switch.
  void Restart();
  // Saves where the caller stands, and goes on where `to` was left. The caller runs on `from`.
  static void Switch(Fiber& from, Fiber& to);

  bool OnStack(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - stack_) < stack_bytes_;
  }

  void* tsan_thread = nullptr;

 private:
  static void Enter(boost::context::detail::transfer_t transfer);

  void (*body_)() = nullptr;
  boost::context::detail::fcontext_t context_ = nullptr;
  std::byte* mapping_ = nullptr;  // a guard page, then the stack; null for an OS thread's own
  std::byte* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;  // ASan's, while another fiber runs
};

}  // namespace cairn::cuemu
