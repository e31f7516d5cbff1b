// Parallel loops on an OpenMP team of the calling thread.

#include <algorithm>

#include "parallel.h"

namespace tandem::kernels::cpu {

void run_parallel(int threads, std::int64_t n, std::int64_t grain, void (*f)(void*, std::int64_t, std::int64_t),
                  void* context) {
  grain = std::max<std::int64_t>(grain, 1);
  std::int64_t parts = std::min<std::int64_t>(threads, (n + grain - 1) / grain);
  std::int64_t size = std::max(grain, (n + parts - 1) / parts);
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (std::int64_t part = 0; part < parts; ++part) {
    std::int64_t begin = part * size;
    std::int64_t end = std::min(n, begin + size);
    if (begin < end) f(context, begin, end);
  }
}

}  // namespace tandem::kernels::cpu
