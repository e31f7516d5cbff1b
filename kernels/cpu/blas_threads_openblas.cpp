// OpenBLAS: one thread per call; tells by the name of its kernels which processor they are for.

#include <strings.h>

#include "blas_threads.h"
#include "isa.h"

extern "C" {
void openblas_set_num_threads(int threads);
char* openblas_get_corename(void);
}

namespace tandem::kernels::cpu {

void single_threaded_blas() { openblas_set_num_threads(1); }

bool blas_suits_processor() {
  const char* core = openblas_get_corename();
  const auto is_one_of = [core](auto... names) { return ((strcasecmp(core, names) == 0) || ...); };
  const bool avx512 = is_one_of("SkylakeX", "Cooperlake", "SapphireRapids");
  const bool avx2 = avx512 || is_one_of("Haswell", "Zen", "Excavator");
  switch (isa()) {
    case Isa::Avx512: return avx512;
    case Isa::Avx2: return avx2;
    case Isa::Base: break;
  }
  return true;
}

}  // namespace tandem::kernels::cpu
