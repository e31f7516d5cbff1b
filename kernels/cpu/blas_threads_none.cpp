// A BLAS of which nothing more is known.

#include "blas_threads.h"

namespace tandem::kernels::cpu {

void single_threaded_blas() {}

bool blas_suits_processor() { return true; }

}  // namespace tandem::kernels::cpu
