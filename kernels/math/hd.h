#pragma once
// Marks functions that every device kind compiles, and loops whose iterations are independent.

/// A function that is inlined into the loop that calls it, in host and in device code.
#if defined(__CUDACC__)
#define TANDEM_HD __host__ __device__ inline
#else
#define TANDEM_HD __attribute__((always_inline)) inline
#endif

/// Before a loop: its iterations are independent, although output and input may be the same array.
#if defined(__clang__)
#define TANDEM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define TANDEM_INDEPENDENT _Pragma("GCC ivdep")
#else
#define TANDEM_INDEPENDENT
#endif
