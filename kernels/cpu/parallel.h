#pragma once
// Splits a range of work over the threads of a stream.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "../backend.h"

namespace tandem::kernels::cpu {

/// Calls f(context, begin, end) for consecutive parts of [0, n), none smaller than `grain` but the last, on at most
/// `threads` threads. Defined in parallel_pool.cpp, or in parallel_openmp.cpp for builds with OpenMP.
void run_parallel(int threads, std::int64_t n, std::int64_t grain, void (*f)(void*, std::int64_t, std::int64_t),
                  void* context);

/// As run_parallel, with any callable f(begin, end) that does not throw. Where f is called must not change results.
template <class F>
void parallel_for(const Stream& stream, std::int64_t n, std::int64_t grain, F&& f) {
  if (n <= 0) return;
  if (stream.threads <= 1 || n <= grain) {
    f(std::int64_t{0}, n);
    return;
  }
  using Fn = std::remove_reference_t<F>;
  run_parallel(
      stream.threads, n, grain,
      [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Fn*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace tandem::kernels::cpu
