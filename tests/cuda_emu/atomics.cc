// In a file of its own: TSan's instrumentation makes these atomics known to TSan, and the checks of
// the other builds, which instrument device code with calls of their own, do not see them.

#include <cuemu/thread.h>

namespace cairn::cuemu {
namespace {

template <class Word>
bool Exchange(Word* word, Word& expected, Word desired) {
  return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

// What fences meet on: TSan knows no fences, but it knows this.
uint32_t fence_word = 0;

}  // namespace

bool CompareExchange(uint16_t* word, uint16_t& expected, uint16_t desired) {
  return Exchange(word, expected, desired);
}
bool CompareExchange(uint32_t* word, uint32_t& expected, uint32_t desired) {
  return Exchange(word, expected, desired);
}
bool CompareExchange(uint64_t* word, uint64_t& expected, uint64_t desired) {
  return Exchange(word, expected, desired);
}
uint16_t AtomicLoad(const uint16_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
uint32_t AtomicLoad(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
uint64_t AtomicLoad(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
void MemoryFence() { __atomic_fetch_add(&fence_word, 1, __ATOMIC_SEQ_CST); }

}  // namespace cairn::cuemu
