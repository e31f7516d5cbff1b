// Parallel loops for builds without OpenMP: the calling thread does it all.

#include "parallel.h"

namespace tandem::kernels::cpu {

void run_parallel(int, std::int64_t n, std::int64_t, void (*f)(void*, std::int64_t, std::int64_t), void* context) {
  f(context, 0, n);
}

}  // namespace tandem::kernels::cpu
