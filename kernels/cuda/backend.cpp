#include "cuda_backend.h"

namespace tandem::kernels {

const Backend& cuda_backend() {
  static const cuda::CudaBackend backend;
  return backend;
}

}  // namespace tandem::kernels
