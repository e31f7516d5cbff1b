// Linked into programs of which every test needs a GPU: without one they say so and count as skipped.

#include <cstdio>
#include <cstdlib>

#include "../../kernels/cuda.h"

namespace {

const bool present = [] {
  if (tandem::kernels::cuda::gpu_count() > 0) return true;
  std::printf("skipped: %s\n", tandem::kernels::cuda::why_no_gpus().c_str());
  std::fflush(stdout);
  std::_Exit(77);
}();

}  // namespace
