// The one CPU backend.

#include "cpu_backend.h"

namespace tandem::kernels {

const Backend& cpu_backend() {
  static const cpu::CpuBackend backend;
  return backend;
}

}  // namespace tandem::kernels
