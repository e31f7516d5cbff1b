#pragma once
// What CUDA gives to device code, for the host compiler: the thread's place in the grid, barriers, warp functions,
// shared memory, atomics. CUDA's own headers, which define the types and the qualifiers, come first.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// A block runs on one OS thread, so what its threads share is what belongs to the OS thread.
#undef __shared__
#define __shared__ static thread_local
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#undef __launch_bounds__
#define __launch_bounds__(...)

inline thread_local uint3 threadIdx{}, blockIdx{};
inline thread_local dim3 blockDim{}, gridDim{};
inline constexpr int warpSize = 32;

namespace tandem::simt {

/// Where in the source a device function was called.
struct Place {
  const char* file;
  int line;
};

/// Waits until every thread of the block is here, at this very place; returns the sum of their `value`s.
int barrier(int value, Place place);

/// What the lanes of a warp laid open to each other at one meeting.
struct Meeting {
  unsigned mask, arrived = 0, left = 0;
  Place place;
  std::uint64_t value[32];
};
/// Waits until all lanes of `mask` have called with the same mask. Each reads and then leaves.
Meeting& meet(unsigned mask, std::uint64_t value, Place place);
void leave(Meeting& meeting);
/// The same, and the accesses to memory that come before are before those that come after.
void synchronize_warp(unsigned mask, Place place);
void fence();
/// The calling thread's number in its warp.
unsigned lane();
/// Reports a shuffle that reads a lane outside the mask, and abandons the kernel.
[[noreturn]] void bad_source_lane(unsigned source, const Meeting& meeting);
/// The dynamic shared memory of the running block.
void* dynamic_shared();

template <class T>
T shuffle(unsigned mask, T value, unsigned source, Place place) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  Meeting& meeting = meet(mask, bits, place);
  if ((mask >> source & 1U) == 0) bad_source_lane(source, meeting);
  std::memcpy(&value, &meeting.value[source], sizeof value);
  leave(meeting);
  return value;
}

// The compiler's functions, inlined: instrumented code tells the line of the kernel.

template <class T>
__forceinline__ bool compare_exchange(T* address, T& expected, T value) {
  return __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
template <class T, class F>
__forceinline__ T atomic_update(T* address, F update) {
  T old;
  __atomic_load(address, &old, __ATOMIC_SEQ_CST);
  while (!compare_exchange(address, old, update(old))) {
  }
  return old;
}

}  // namespace tandem::simt

#define TANDEM_SIMT_PLACE \
  ::tandem::simt::Place { file, line }

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  tandem::simt::barrier(0, TANDEM_SIMT_PLACE);
}
inline int __syncthreads_count(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return tandem::simt::barrier(predicate != 0, TANDEM_SIMT_PLACE);
}
inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return tandem::simt::barrier(predicate != 0, TANDEM_SIMT_PLACE) != 0;
}
inline int __syncthreads_and(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return tandem::simt::barrier(predicate == 0, TANDEM_SIMT_PLACE) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  tandem::simt::synchronize_warp(mask, TANDEM_SIMT_PLACE);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  tandem::simt::Meeting& meeting = tandem::simt::meet(mask, predicate != 0, TANDEM_SIMT_PLACE);
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1U) != 0 && meeting.value[i] != 0) ballot |= 1U << i;
  }
  tandem::simt::leave(meeting);
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) == mask;
}

// The four shuffles: the lane that is read, in groups of `width` lanes.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  const unsigned w = static_cast<unsigned>(width), base = tandem::simt::lane() & ~(w - 1);
  return tandem::simt::shuffle(mask, value, base + (static_cast<unsigned>(source) & (w - 1)), TANDEM_SIMT_PLACE);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const unsigned w = static_cast<unsigned>(width), self = tandem::simt::lane(), in_group = self & (w - 1);
  return tandem::simt::shuffle(mask, value, in_group + delta < w ? self + delta : self, TANDEM_SIMT_PLACE);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const unsigned w = static_cast<unsigned>(width), self = tandem::simt::lane(), in_group = self & (w - 1);
  return tandem::simt::shuffle(mask, value, in_group >= delta ? self - delta : self, TANDEM_SIMT_PLACE);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const unsigned w = static_cast<unsigned>(width), self = tandem::simt::lane();
  const unsigned source = self ^ static_cast<unsigned>(lanes);
  return tandem::simt::shuffle(mask, value, (source & ~(w - 1)) > (self & ~(w - 1)) ? self : source, TANDEM_SIMT_PLACE);
}
#undef TANDEM_SIMT_PLACE

template <class T>
__forceinline__ T atomicAdd(T* address, T value) {
  return tandem::simt::atomic_update(address, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
__forceinline__ T atomicSub(T* address, T value) {
  return tandem::simt::atomic_update(address, [=](T old) { return static_cast<T>(old - value); });
}
template <class T>
__forceinline__ T atomicMin(T* address, T value) {
  return tandem::simt::atomic_update(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
__forceinline__ T atomicMax(T* address, T value) {
  return tandem::simt::atomic_update(address, [=](T old) { return value > old ? value : old; });
}
template <class T>
__forceinline__ T atomicAnd(T* address, T value) {
  return tandem::simt::atomic_update(address, [=](T old) { return old & value; });
}
template <class T>
__forceinline__ T atomicOr(T* address, T value) {
  return tandem::simt::atomic_update(address, [=](T old) { return old | value; });
}
template <class T>
__forceinline__ T atomicExch(T* address, T value) {
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_SEQ_CST);
  return old;
}
template <class T>
__forceinline__ T atomicCAS(T* address, T expected, T value) {
  tandem::simt::compare_exchange(address, expected, value);
  return expected;
}

inline void __threadfence() { tandem::simt::fence(); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }

template <class T>
T __ldg(const T* address) {
  return *address;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
