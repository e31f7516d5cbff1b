// Finds out which vector instructions the processor has.

#include "isa.h"

#include <cstdlib>
#include <cstring>

namespace tandem::kernels::cpu {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  Isa best = avx512 ? Isa::Avx512 : (avx2 ? Isa::Avx2 : Isa::Base);
  const char* wish = std::getenv("TANDEM_ISA");
  if (wish == nullptr) return best;
  if (std::strcmp(wish, "base") == 0) return Isa::Base;
  if (std::strcmp(wish, "avx2") == 0 && avx2) return Isa::Avx2;
  return best;
#else
  return Isa::Base;
#endif
}

}  // namespace

Isa isa() {
  static const Isa level = detect();
  return level;
}

}  // namespace tandem::kernels::cpu
