#include "tests/cuda_emu/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include "base/check.h"
#include "tests/cuda_emu/sanitizers.h"

namespace cairn::cuemu {
namespace {

namespace context = boost::context::detail;

constexpr size_t kGuardBytes = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;  // red zones around every local
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

// Travels with a jump: who left, and who is to go on.
struct Handover {
  Fiber* from;
  Fiber* to;
};

}  // namespace

Fiber::Fiber() {
  pthread_attr_t attributes;
  void* low = nullptr;
  CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
  CHECK(pthread_attr_getstack(&attributes, &low, &stack_bytes_) == 0);
  pthread_attr_destroy(&attributes);
  stack_ = static_cast<std::byte*>(low);
#if defined(CAIRN_CUEMU_TSAN)
  tsan_thread = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(void (*body)()) : body_(body), stack_bytes_(kStackBytes) {
  void* mapping = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapping != MAP_FAILED);
  CHECK(mprotect(mapping, kGuardBytes, PROT_NONE) == 0);
  mapping_ = static_cast<std::byte*>(mapping);
  stack_ = mapping_ + kGuardBytes;
  Restart();
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
  Unpoison(stack_, stack_bytes_);
  munmap(mapping_, kGuardBytes + stack_bytes_);
}

void Fiber::Restart() {
  Unpoison(stack_, stack_bytes_);
  fake_stack_ = nullptr;
  context_ = context::make_fcontext(stack_ + stack_bytes_, stack_bytes_, &Fiber::Enter);
}

void Fiber::Switch(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_, to.stack_bytes_);
#elif defined(CAIRN_CUEMU_TSAN)
  __tsan_switch_to_fiber(to.tsan_thread, __tsan_switch_to_fiber_no_sync);
#endif
  Handover handover{&from, &to};
  const context::transfer_t back = context::jump_fcontext(to.context_, &handover);
  // Somebody jumped back here: where they stand is known only now.
  static_cast<Handover*>(back.data)->from->context_ = back.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Enter(context::transfer_t transfer) {
  const Handover handover = *static_cast<Handover*>(transfer.data);
  handover.from->context_ = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  handover.to->body_();
  CHECK(false);  // nobody is there to return to
}

}  // namespace cairn::cuemu
