// CUDA's atomics and fences. Blocks of one grid run on several OS threads, so they are real ones,
// built on a compare-and-exchange of the emulator's (device code itself is instrumented by the
// checks, which take no notice of these calls).
#pragma once

#include <cuemu/thread.h>

#include <bit>
#include <type_traits>

namespace cairn::cuemu {

// Replaces *target by update(*target) in one step; returns what was there.
template <class T, class Update>
T ReadModifyWrite(T* target, Update update) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  auto* word = reinterpret_cast<Word*>(target);
  Word seen = AtomicLoad(word);
  while (!CompareExchange(word, seen, std::bit_cast<Word>(update(std::bit_cast<T>(seen))))) {
  }
  return std::bit_cast<T>(seen);
}

}  // namespace cairn::cuemu

template <class T>
T atomicAdd(T* target, std::type_identity_t<T> value) {
  return ::cairn::cuemu::ReadModifyWrite(target, [&](T old) { return T(old + value); });
}
template <class T>
T atomicMax(T* target, std::type_identity_t<T> value) {
  return ::cairn::cuemu::ReadModifyWrite(target, [&](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(T* target, std::type_identity_t<T> value) {
  return ::cairn::cuemu::ReadModifyWrite(target, [&](T old) { return old < value ? old : value; });
}
template <class T>
T atomicOr(T* target, std::type_identity_t<T> value) {
  return ::cairn::cuemu::ReadModifyWrite(target, [&](T old) { return T(old | value); });
}
template <class T>
T atomicExch(T* target, std::type_identity_t<T> value) {
  return ::cairn::cuemu::ReadModifyWrite(target, [&](T) { return value; });
}
// Yields first: whoever spins on it waits for another thread of its block.
template <class T>
T atomicCAS(T* target, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  ::cairn::cuemu::Yield(::cairn::cuemu::Place::Here());
  return ::cairn::cuemu::ReadModifyWrite(target,
                                         [&](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* target, unsigned limit) {
  return ::cairn::cuemu::ReadModifyWrite(
      target, [&](unsigned old) { return old >= limit ? 0u : old + 1u; });
}
inline void __threadfence() { ::cairn::cuemu::MemoryFence(); }
inline void __threadfence_block() { ::cairn::cuemu::MemoryFence(); }
