// CUDA's warp intrinsics on the emulator's meetings. The rules are those of the CUDA C++
// programming guide: a shuffle exchanges within groups of `width` lanes, and a source outside the
// group gives the lane its own value. Only __syncwarp orders memory; shuffles and votes do not.
#pragma once

#include <cuemu/thread.h>

#include <cstring>
#include <type_traits>

namespace cairn::cuemu {

template <class T>
T FromLane(const Collective& collective, unsigned lane) {
  static_assert(sizeof(T) <= kPayloadBytes && std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(static_cast<void*>(&value), collective.payload[lane], sizeof value);
  return value;
}

template <class T>
T Shuffle(uint32_t mask, T value, unsigned source, Place place) {
  Collective& collective = MeetWarp(mask, WarpOp::kShuffle, &value, sizeof value, place);
  if (((mask >> source) & 1u) == 0) Trap("a shuffle reads a lane outside of its mask", place);
  const T result = FromLane<T>(collective, source);
  LeaveWarp(collective);
  return result;
}

template <class T, class Combine>
T ReduceWarp(uint32_t mask, T value, Combine combine, Place place) {
  Collective& collective = MeetWarp(mask, WarpOp::kReduce, &value, sizeof value, place);
  uint32_t rest = mask & (mask - 1);
  T result = FromLane<T>(collective, static_cast<unsigned>(__builtin_ctz(mask)));
  for (; rest != 0; rest &= rest - 1) {
    const T next = FromLane<T>(collective, static_cast<unsigned>(__builtin_ctz(rest)));
    result = combine(result, next);
  }
  LeaveWarp(collective);
  return result;
}

}  // namespace cairn::cuemu

using CuemuPlace = ::cairn::cuemu::Place;

inline void __syncwarp(unsigned mask = ::cairn::cuemu::kFullMask,
                       CuemuPlace place = CuemuPlace::Here()) {
  ::cairn::cuemu::LeaveWarp(
      ::cairn::cuemu::MeetWarp(mask, ::cairn::cuemu::WarpOp::kSync, nullptr, 0, place));
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              CuemuPlace place = CuemuPlace::Here()) {
  const unsigned lane = ::cairn::cuemu::current_thread->lane;
  const unsigned group = static_cast<unsigned>(width) - 1;
  return ::cairn::cuemu::Shuffle(mask, value, (lane & ~group) | (unsigned(source) & group), place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  CuemuPlace place = CuemuPlace::Here()) {
  const unsigned lane = ::cairn::cuemu::current_thread->lane;
  const unsigned group = static_cast<unsigned>(width) - 1;
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  // A lane may read from its own group and from those before it.
  return ::cairn::cuemu::Shuffle(mask, value, source > (lane | group) ? lane : source, place);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 CuemuPlace place = CuemuPlace::Here()) {
  const unsigned lane = ::cairn::cuemu::current_thread->lane;
  const unsigned group = static_cast<unsigned>(width) - 1;
  const unsigned source = (lane & group) < delta ? lane : lane - delta;
  return ::cairn::cuemu::Shuffle(mask, value, source, place);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   CuemuPlace place = CuemuPlace::Here()) {
  const unsigned lane = ::cairn::cuemu::current_thread->lane;
  const unsigned group = static_cast<unsigned>(width) - 1;
  const unsigned source = (lane & group) + delta > group ? lane : lane + delta;
  return ::cairn::cuemu::Shuffle(mask, value, source, place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CuemuPlace place = CuemuPlace::Here()) {
  const unsigned vote = predicate != 0 ? 1u << ::cairn::cuemu::current_thread->lane : 0u;
  return ::cairn::cuemu::ReduceWarp(
      mask, vote, [](unsigned a, unsigned b) { return a | b; }, place);
}
inline int __any_sync(unsigned mask, int predicate, CuemuPlace place = CuemuPlace::Here()) {
  return __ballot_sync(mask, predicate, place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CuemuPlace place = CuemuPlace::Here()) {
  return __ballot_sync(mask, predicate, place) == mask;
}

template <class T>
T __reduce_add_sync(unsigned mask, T value, CuemuPlace place = CuemuPlace::Here()) {
  return ::cairn::cuemu::ReduceWarp(
      mask, value, [](T a, T b) { return T(a + b); }, place);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, CuemuPlace place = CuemuPlace::Here()) {
  return ::cairn::cuemu::ReduceWarp(
      mask, value, [](T a, T b) { return a > b ? a : b; }, place);
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, CuemuPlace place = CuemuPlace::Here()) {
  return ::cairn::cuemu::ReduceWarp(
      mask, value, [](T a, T b) { return a < b ? a : b; }, place);
}
